"""The checks of a plan that runs: its measured peak, and results equal to plain's. Used by the
policies and the measured search.
"""

from __future__ import annotations

import warnings

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.errors import PlannerError
from planner.planning.probe import probe
from planner.training_step.step import Step
from planner.verifier.measure import measure_both, run_for_results, same_results

PLAIN_RUNS = 3
"""Further plain runs where the first differs from the planned one: steps may take turns."""


def planned_peak(step: Step, plan: Plan) -> int:
    """Return the larger peak of a first step, which records, and a second one, which follows."""
    with applied(step.model, Runtime(plan)):
        return max(found.peak_bytes for found in measure_both(step))


def check_same_results(step: Step, plan: Plan) -> None:
    """Raise unless a planned step gives plain's gradients, outputs and buffers, bit for bit.

    Steps that differ from each other without a plan (attention in as many chunks as fit, random
    depth) cannot be compared so: there each replay is compared with a checksum of what was dropped.

    Raises:
        PlannerError: the results, or a replay, are others.
    """
    plain = run_for_results(step)
    with applied(step.model, Runtime(plan)):
        planned = run_for_results(step)
    same = same_results(plain, planned)
    if all(same):
        return
    repeats = True
    for _ in range(PLAIN_RUNS):
        again = run_for_results(step)
        if all(same_results(again, planned)):
            return
        repeats = repeats and all(same_results(plain, again))
    if not repeats:
        _check_replays(step, plan)
        return
    raise PlannerError(
        f"under the plan this {plan.model_class} does not train the same",
        numbers="equal to plain: gradients {}, outputs {}, buffers {}".format(*same),
        cause="something is written between forward and backward where no check sees it",
        fix="leave units out with save=[...], and please report the model",
    )


def _check_replays(step: Step, plan: Plan) -> None:
    """Compare each replay of some steps with a checksum of what was dropped."""
    name = plan.model_class
    for _ in range(PLAIN_RUNS):
        faults = probe(step, plan, by_digest=True)
        if faults:
            raise PlannerError(
                f"under the plan this {name} does not train the same: {faults[0].reason}",
                cause=f"segment {faults[0].segment} is not replayed as it ran",
                fix="leave units out with save=[...], and please report the model",
            )
    warnings.warn(
        f"two steps of this {name} from the same state differ without a plan: replays were "
        "compared with checksums of what was dropped, and not with another step",
        RuntimeWarning,
        stacklevel=2,
    )
