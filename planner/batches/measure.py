"""One batch size, run: a plan that holds on the model, its peak and its throughput."""

from __future__ import annotations

from dataclasses import replace

from planner.applier.gates import install
from planner.applier.runtime import Runtime
from planner.documents import Plan, Profile
from planner.documents.batch import BatchRow
from planner.errors import InfeasibleBudgetError
from planner.planning.settle import settle
from planner.profiler.step import Step
from planner.verifier.measure import measure_peak, measure_time


def measured(
    step: Step, profile: Profile, budget_bytes: int, row: BatchRow, repeats: int
) -> tuple[BatchRow, Plan] | None:
    """Return the row with what was measured, and the plan; None where the budget does not hold.

    Args:
        step: the step at this batch size.
        profile: its profile, measured or scaled.
        budget_bytes: the budget.
        row: what was predicted.
        repeats: timed steps; the least counts.
    """
    try:
        plan = settle(step, replace(profile, step=step.describe()), budget_bytes)
    except InfeasibleBudgetError:
        return None
    hooks = install(step.model, Runtime(plan)) if plan.segments else []
    try:
        peak = max(measure_peak(step) for _ in range(2))
        time_ns = min(measure_time(step) for _ in range(max(1, repeats)))
    finally:
        for hook in hooks:
            hook.remove()
    if peak > budget_bytes:
        return None
    found = replace(
        row,
        measured_peak_bytes=peak,
        measured_samples_per_second=round(row.batch_size / (time_ns / 1e9), 3),
    )
    return found, replace(plan, measured_peak_bytes=peak)
