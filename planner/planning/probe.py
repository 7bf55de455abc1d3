"""The probe of a candidate plan: run one step with every replay compared to its original."""

from __future__ import annotations

from planner.applier.gates import install
from planner.applier.runtime import Runtime
from planner.documents import Exclusion, Plan
from planner.errors import PlannerError, ReplayError
from planner.graph.address import unit_of
from planner.profiler.same_state import from_same_state
from planner.profiler.step import Step


def probe(step: Step, plan: Plan, known: set[str]) -> list[Exclusion]:
    """Run one step with every replay compared to its original; returns the units to exclude.

    Args:
        step: the step that the plan is for.
        plan: the candidate.
        known: units that are excluded already.
    """
    runtime = Runtime(plan)
    runtime.audit()
    hooks = install(step.model, runtime)
    try:
        with from_same_state(step):
            step.run()
    except PlannerError as error:
        wrong = _replay_error(error)
        if wrong is None:
            raise
        unit = _culprit(plan, wrong.unit, known)
        return [Exclusion(unit, f"its replay failed: {wrong.what}")]
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, Exclusion] = {}
    for finding in runtime.findings:
        unit = unit_of(finding.address) if finding.address else ""
        if not unit or unit in known:
            unit = _culprit(plan, finding.segment, known)
        why = "its replay differs" if finding.deterministic else "its kernel is not deterministic"
        reason = f"{why}: {finding.op} ({finding.address or finding.segment})"
        found.setdefault(unit, Exclusion(unit, reason))
    return list(found.values())


def _replay_error(error: BaseException | None) -> ReplayError | None:
    while error is not None and not isinstance(error, ReplayError):
        error = error.__cause__
    return error


def _culprit(plan: Plan, label: str, known: set[str]) -> str:
    """The unit of the segment with this label; the first one not excluded where it is unclear."""
    first = label.split(" .. ", maxsplit=1)[0]
    units = [s.start.unit for s in plan.segments if s.start.unit == first]
    units += [s.start.unit for s in plan.segments]
    return next((unit for unit in units if unit not in known), units[0])
