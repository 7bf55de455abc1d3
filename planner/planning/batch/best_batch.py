"""`best_batch`: for a budget, the batch size and the plan with the highest throughput.

A plan lets a larger batch fit, and a larger batch may use the device better; or it may not, and the
plain batch is best. All sizes are predicted, from the profiles of a few (`predict`); the few best
are run and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.budget import parse_bytes
from planner.documents import Plan, Profile
from planner.errors import InfeasibleBudgetError
from planner.planning.batch.choice import BatchChoice, BatchRow
from planner.planning.batch.predict import Predictions
from planner.planning.tested import plan_tested
from planner.search.holders import holders
from planner.search.solve import floor
from planner.training_step.step import Step, make_step
from planner.verifier.measure import measure_peak, measure_time

MEASURED = 3
"""Batch sizes that are run; beside them the largest plain one."""


def best_batch(
    model: nn.Module,
    *,
    budget_mb: float | str,
    make_inputs: Callable[[int], object],
    batch_sizes: Sequence[int] | None = None,
    loss_fn: Callable[[Any], object] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    repeats: int = 3,
) -> BatchChoice:
    """Return the batch size and the plan that train most samples per second within a budget.

    The model is left exactly as it was.

    Args:
        model: the model, in the mode in which it is trained.
        budget_mb: most live bytes of a step, as for `planner.plan`, but no percentage.
        make_inputs: makes the inputs of a step for a batch size, as `planner.profile` takes them.
        batch_sizes: sizes to look at; by default 1, 2, 3, 4, 6, 8, 12, 16, ... up to the first
            that no plan makes fit.
        loss_fn, optimizer: as for `planner.profile`.
        repeats: timed steps of each size that is measured, in turn; the least of each counts.

    Raises:
        InvalidBudgetError: the budget makes no sense.
        InfeasibleBudgetError: not even the smallest batch size fits.
        InvalidModelError, InvalidInputsError, StepError: see `planner.profile`.
    """
    budget = parse_bytes(budget_mb)

    def step_of(batch_size: int) -> Step:
        inputs = make_inputs(batch_size)
        return make_step(model, inputs=inputs, loss_fn=loss_fn, optimizer=optimizer)

    predictions = Predictions(step_of, budget, batch_sizes)
    rows = {row.batch_size: row for row in predictions.rows()}
    fitting = [row for row in rows.values() if row.fits]
    if not fitting:
        raise _infeasible(predictions, budget)
    found: dict[int, FittingBatch] = {}
    for row in _worth_running(fitting):
        candidate = _fitting(step_of(row.batch_size), predictions.profile(row.batch_size), budget)
        if candidate is not None:
            found[row.batch_size] = candidate
    if not found:
        raise _infeasible(predictions, budget)
    for size, time_ns in zip(found, _least_times_ns(list(found.values()), repeats), strict=True):
        rows[size] = replace(
            rows[size],
            measured_peak_bytes=found[size].plan.measured_peak_bytes,
            measured_samples_per_second=round(size / (time_ns / 1e9), 3),
        )
    best = max((rows[size] for size in found), key=_throughput)
    return BatchChoice(
        model_class=type(model).__name__,
        budget_bytes=budget,
        best=best,
        plan=found[best.batch_size].plan,
        rows=tuple(rows.values()),
    )


def _worth_running(rows: list[BatchRow]) -> list[BatchRow]:
    """The few with the best prediction, and the largest that fits plain."""
    best = sorted(rows, key=lambda row: -(row.samples_per_second or 0.0))[:MEASURED]
    plain = max((r for r in rows if r.is_plain), key=lambda r: r.batch_size, default=None)
    return best if plain is None or plain in best else [*best, plain]


def _throughput(row: BatchRow) -> tuple[float, int]:
    """Of equals, the smaller batch is the simpler choice."""
    return row.measured_samples_per_second or 0.0, -row.batch_size


def _infeasible(predictions: Predictions, budget_bytes: int) -> InfeasibleBudgetError:
    graph = predictions.graph(predictions.smallest)
    spans, lowest = floor(graph)
    return InfeasibleBudgetError(
        budget_bytes=budget_bytes, min_peak_bytes=lowest, holders=holders(graph, spans)
    )


@dataclass(frozen=True, slots=True)
class FittingBatch:
    """A plan that was run at its batch size and stayed within the budget; what it recorded."""

    step: Step
    plan: Plan
    runtime: Runtime


def _fitting(step: Step, profile: Profile, budget_bytes: int) -> FittingBatch | None:
    """Return a plan that was measured within the budget, or None where there is none.

    Args:
        step: the step at this batch size.
        profile: its profile, measured or scaled.
        budget_bytes: the budget.
    """
    try:
        plan = plan_tested(step, replace(profile, step=step.describe()), budget_bytes)
    except InfeasibleBudgetError:
        return None
    found = FittingBatch(step, plan, Runtime(plan))
    with applied(step.model, found.runtime):
        peak = max(measure_peak(step) for _ in range(2))
    if peak > budget_bytes:
        return None
    return replace(found, plan=replace(plan, measured_peak_bytes=peak))


def _least_times_ns(candidates: Sequence[FittingBatch], rounds: int) -> list[int]:
    """Return each candidate's least time of a step; all run in turn, so that drift hits all."""
    best: list[list[int]] = [[] for _ in candidates]
    for _ in range(max(1, rounds)):
        for times, candidate in zip(best, candidates, strict=True):
            with applied(candidate.step.model, candidate.runtime):
                times.append(measure_time(candidate.step))
    return [min(times) for times in best]
