"""`verify_plan`: runs the step plain and planned from the same state, and compares."""

from __future__ import annotations

import gc

from planner.applier.check import check_plan
from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.memory.allocator import ran_out_of_memory, release_cached
from planner.training_step.step import Step, model_device
from planner.verifier.measure import (
    count_forwards,
    measure_both,
    measure_peak,
    measure_time,
    run_for_results,
    same_results,
)
from planner.verifier.verification import Verification


def verify_plan(step: Step, plan: Plan, repeats: int = 3) -> Verification:
    """Return what the step does with and without the plan; the model is left as it was.

    Where the plain step runs out of memory, replays are compared with checksums of what they stand
    for instead.

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
    plain = None if plain_peak is None else [run_for_results(step) for _ in range(2)]
    runtime = Runtime(plan)
    with applied(step.model, runtime):
        memory = measure_both(step)
        if plain is None:
            runtime.audit(by_digest=True)
        results = [run_for_results(step, lambda: runtime.replayed.ops) for _ in range(2)]
        forwards = count_forwards(step)
    compared = plain or results
    equal = [same_results(compared[0], planned) for planned in results]
    reserved = [found.reserved_bytes for found in memory if found.reserved_bytes is not None]
    return Verification(
        budget_bytes=plan.budget_bytes,
        plain_peak_bytes=plain_peak,
        measured_peak_bytes=max(found.peak_bytes for found in memory),
        reserved_bytes=max(reserved, default=None),
        gradients_equal=all(e[0] for e in equal) if plain else not runtime.findings,
        outputs_equal=all(e[1] for e in equal) if plain else not runtime.findings,
        buffers_equal=all(e[2] for e in equal) if plain else not runtime.findings,
        plain_repeats=same_results(*compared) == (True, True, True),
        forward_runs=forwards,
        replayed_ops=results[-1].replayed_ops,
        overhead_ratio=None if plain is None else _overhead(step, runtime, repeats),
    )


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
