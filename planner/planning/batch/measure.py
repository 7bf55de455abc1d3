"""A few batch sizes, run: plans that hold on the model, their peaks and their throughputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan, Profile
from planner.errors import InfeasibleBudgetError
from planner.planning.tested import plan_tested
from planner.training_step.step import Step
from planner.verifier.measure import measure_peak, measure_time


@dataclass(frozen=True, slots=True)
class Held:
    """A plan that was run at its batch size and stayed within the budget."""

    step: Step
    plan: Plan
    runtime: Runtime


def held(step: Step, profile: Profile, budget_bytes: int) -> Held | None:
    """Return a plan that holds on the model, or None where the budget does not hold.

    Args:
        step: the step at this batch size.
        profile: its profile, measured or scaled.
        budget_bytes: the budget.
    """
    try:
        plan = plan_tested(step, replace(profile, step=step.describe()), budget_bytes)
    except InfeasibleBudgetError:
        return None
    found = Held(step, plan, Runtime(plan))
    with applied(step.model, found.runtime):
        peak = max(measure_peak(step) for _ in range(2))
    if peak > budget_bytes:
        return None
    return replace(found, plan=replace(plan, measured_peak_bytes=peak))


def times_ns(candidates: Sequence[Held], rounds: int) -> list[int]:
    """Return each candidate's least time of a step; all run in turn, so that drift hits all."""
    best: list[list[int]] = [[] for _ in candidates]
    for _ in range(max(1, rounds)):
        for times, candidate in zip(best, candidates, strict=True):
            with applied(candidate.step.model, candidate.runtime):
                times.append(measure_time(candidate.step))
    return [min(times) for times in best]
