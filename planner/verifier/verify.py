"""`verify_plan`: runs the step plain and planned from the same state, and compares."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from planner.applier.check import check_plan
from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.memory.allocator import ran_out_of_memory, release_cached
from planner.training_step.step import Step, model_device
from planner.verifier.measure import (
    Equality,
    Results,
    count_forwards,
    measure_both,
    measure_peak,
    measure_time,
    run_for_results,
    same_results,
)
from planner.verifier.verification import Verification

FURTHER = 3
"""Plain steps that run besides the first two where a planned one differs: steps may take turns."""


def verify_plan(step: Step, plan: Plan, repeats: int = 3) -> Verification:
    """Return what the step does with and without the plan; the model is left as it was.

    A plain step that runs out of memory, or that differs from another plain step (random depth,
    attention in as many chunks as fit), cannot be compared with a planned one. Then each replay is
    compared with a checksum of what was dropped.

    Args:
        step: the training step (see `make_step`).
        plan: the plan to check.
        repeats: timed steps of each kind, run in turn; the least of each counts.

    Raises:
        StalePlanError: the plan is for another model.
        StepError: the step raised.
        ReplayError: a segment could not be replayed.
    """
    check_plan(step.model, plan)
    plain_peak = _plain_peak(step)
    plain = [] if plain_peak is None else [run_for_results(step) for _ in range(2)]
    runtime = Runtime(plan)
    with applied(step.model, runtime):
        memory = measure_both(step)
        planned = [_planned(step, runtime) for _ in range(2)]
        forwards = count_forwards(step)
    if not _all_equal([*plain[:1], *planned]):
        plain += [run_for_results(step) for _ in range(FURTHER if plain else 0)]
    repeating = _all_equal(plain or planned)
    if plain and repeating:
        equal = Equality(*map(all, zip(*(same_results(plain[0], p) for p in planned), strict=True)))
    else:
        equal = Equality(*[_replays_are_right(step, plan)] * 3)
    reserved = [found.reserved_bytes for found in memory if found.reserved_bytes is not None]
    return Verification(
        budget_bytes=plan.budget_bytes,
        plain_peak_bytes=plain_peak,
        measured_peak_bytes=max(found.peak_bytes for found in memory),
        reserved_bytes=max(reserved, default=None),
        compared="steps" if plain and repeating else "replays",
        gradients_equal=equal.gradients,
        outputs_equal=equal.outputs,
        buffers_equal=equal.buffers,
        plain_repeats=repeating,
        forward_runs=forwards,
        replayed_ops=planned[-1].replayed_ops,
        overhead_ratio=_overhead(step, runtime, repeats) if plain else None,
    )


def _planned(step: Step, runtime: Runtime) -> Results:
    return run_for_results(step, lambda: runtime.replayed.ops)


def _all_equal(results: Sequence[Results]) -> bool:
    return all(all(same_results(results[0], other)) for other in results[1:])


def _replays_are_right(step: Step, plan: Plan) -> bool:
    """Whether each replay of a recorded and a followed step equals what was dropped."""
    runtime = Runtime(plan)
    runtime.audit(by_digest=True)
    with applied(step.model, runtime):
        for _ in range(2):
            run_for_results(step)
    return not runtime.findings


def _plain_peak(step: Step) -> int | None:
    """The most live bytes of the plain step; None where it runs out of memory."""
    try:
        return measure_peak(step)
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
    gc.collect()  # the error, which holds what the step held, is gone by now
    release_cached(model_device(step.model))
    return None


def _overhead(step: Step, runtime: Runtime, repeats: int) -> float:
    plain, planned = [], []
    for _ in range(max(repeats, 1)):
        plain.append(measure_time(step))
        with applied(step.model, runtime):
            planned.append(measure_time(step))
    return min(planned) / min(plain) - 1
