"""The checks of a plan that runs: its measured peak, and results equal to plain's. Used by the
policies and the measured search.
"""

from __future__ import annotations

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.errors import PlannerError
from planner.training_step.step import Step
from planner.verifier.measure import measure_both, run_for_results, same_results


def planned_peak(step: Step, plan: Plan) -> int:
    """Return the larger peak of a first step, which records, and a second one, which follows."""
    with applied(step.model, Runtime(plan)):
        return max(found.peak_bytes for found in measure_both(step))


def check_same_results(step: Step, plan: Plan) -> None:
    """Raise unless a planned step gives plain's gradients, outputs and buffers, bit for bit.

    A step that does not repeat itself cannot be compared, and passes.

    Raises:
        PlannerError: it gives others.
    """
    plain = run_for_results(step)
    with applied(step.model, Runtime(plan)):
        planned = run_for_results(step)
    same = same_results(plain, planned)
    if all(same) or not all(same_results(plain, run_for_results(step))):
        return
    raise PlannerError(
        f"under the plan this {plan.model_class} does not train the same",
        numbers="equal to plain: gradients {}, outputs {}, buffers {}".format(*same),
        cause="something is written between forward and backward where no check sees it",
        fix="leave units out with save=[...], and please report the model",
    )
