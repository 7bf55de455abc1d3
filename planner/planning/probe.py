"""The probe of a candidate plan: run one step with every replay compared to its original."""

from __future__ import annotations

from dataclasses import dataclass

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.errors import PlannerError, ReplayError
from planner.graph.address import unit_of
from planner.training_step.same_state import from_same_state
from planner.training_step.step import Step


@dataclass(frozen=True, slots=True)
class Fault:
    """A segment whose replay fails, or gives other bits than the forward did.

    Attributes:
        segment: its label, as `planner.applier.segments.segment_name` writes it.
        unit: the unit of the first op that differs; empty for the model's own code, and where the
            replay failed before any op could be compared.
        reason: what is wrong, in words.
    """

    segment: str
    unit: str
    reason: str


def probe(step: Step, plan: Plan, by_digest: bool = False) -> list[Fault]:
    """Run one step with every replay compared to its original; returns what is wrong.

    A replay that fails ends the step, so what the segments before it would show is not known then.

    Args:
        step: the step that the plan is for.
        plan: the candidate.
        by_digest: compare checksums, which takes no more memory than the planned step; else
            originals, which shows more (see `planner.replay.digest`).
    """
    runtime = Runtime(plan)
    runtime.audit(by_digest)
    try:
        with applied(step.model, runtime), from_same_state(step):
            step.run()
    except PlannerError as error:
        wrong = _replay_error(error)
        if wrong is None:
            raise
        return [Fault(wrong.unit, "", f"its replay failed: {wrong.what}")]
    found: dict[Fault, None] = {}
    for finding in runtime.findings:
        why = "its replay differs" if finding.deterministic else "its kernel is not deterministic"
        reason = f"{why}: {finding.op} ({finding.address or finding.segment})"
        unit = unit_of(finding.address) if finding.address else ""
        found.setdefault(Fault(finding.segment, unit, reason))
    return list(found)


def _replay_error(error: BaseException | None) -> ReplayError | None:
    while error is not None and not isinstance(error, ReplayError):
        error = error.__cause__
    return error
