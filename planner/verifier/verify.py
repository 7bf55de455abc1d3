"""`verify_plan`: runs the step plain and planned from the same state, and compares."""

from __future__ import annotations

from planner.applier.check import check_plan
from planner.applier.gates import install
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.profiler.step import Step
from planner.verifier.measure import (
    count_forwards,
    measure_peak,
    measure_time,
    run_for_results,
    same_results,
)
from planner.verifier.result import Verification


def verify_plan(step: Step, plan: Plan, repeats: int = 3) -> Verification:
    """Return what the step does with and without the plan; the model is left as it was.

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
    plain_peak = measure_peak(step)
    plain, again = run_for_results(step), run_for_results(step)
    runtime = Runtime(plan)
    with _Applied(step, runtime):
        peaks = [measure_peak(step) for _ in range(2)]
        results = [run_for_results(step, lambda: runtime.replayed[0]) for _ in range(2)]
        forwards = count_forwards(step)
    repeats_ok = same_results(plain, again) == (True, True, True)
    equal = [same_results(plain, planned) for planned in results]
    return Verification(
        budget_bytes=plan.budget_bytes,
        plain_peak_bytes=plain_peak,
        measured_peak_bytes=max(peaks),
        gradients_equal=all(e[0] for e in equal),
        outputs_equal=all(e[1] for e in equal),
        buffers_equal=all(e[2] for e in equal),
        plain_repeats=repeats_ok,
        forward_runs=forwards,
        replayed_ops=results[-1].replayed_ops,
        overhead_ratio=_overhead(step, runtime, repeats),
    )


class _Applied:
    """The plan's hooks on the model, for the length of a `with` block."""

    def __init__(self, step: Step, runtime: Runtime) -> None:
        self._hooks = install(step.model, runtime)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _overhead(step: Step, runtime: Runtime, repeats: int) -> float:
    plain, planned = [], []
    for _ in range(max(repeats, 1)):
        plain.append(measure_time(step))
        with _Applied(step, runtime):
            planned.append(measure_time(step))
    return min(planned) / min(plain) - 1
