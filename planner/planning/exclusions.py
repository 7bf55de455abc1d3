"""Which units to leave out for replays that are wrong. Nothing runs; called by the policies.

AN EXCLUSION CHANGES THE PLAN only where the unit makes, within the segment at fault, something
that the segment does not keep: a unit that is left out keeps what its ops make. Excluding any other
unit would lead the search to the same segment, and the probe to the same fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.applier.segments import segment_name
from planner.documents import Exclusion, Plan, UnitCall
from planner.errors import ReplayError
from planner.graph import Graph, Span, resolve
from planner.planning.probe import Fault


def exclusions_for(graph: Graph, plan: Plan, faults: Iterable[Fault]) -> list[Exclusion]:
    """Return what the plan should leave out besides what it does already.

    These are the units of the ops at fault. Where leaving one out would not change the plan, and
    where the unit is not known, it is also the first unit that the segment runs again.
    """
    known = {exclusion.unit for exclusion in plan.exclusions}
    found: dict[str, Exclusion] = {}
    for fault in faults:
        spans = _spans(graph, plan, fault.segment)
        units = (fault.unit, *_units_in(graph, spans))
        helps = (unit for unit in units if unit and _would_change(graph, spans, unit))
        for unit in (fault.unit, next(helps, "")):
            if unit and unit not in known:
                found.setdefault(unit, Exclusion(unit, fault.reason))
    return list(found.values())


def no_exclusion_helps(
    model_class: str, fault: Fault, exclusions: Iterable[Exclusion]
) -> ReplayError:
    """Return the error for a wrong replay that stays wrong whatever is left out."""
    return ReplayError(
        f"a replay in this {model_class} is wrong, and no unit can be left out for it:"
        f" {fault.segment}",
        numbers=f"{fault.reason}; units left out: {names_of(exclusions)}",
        cause="code that is no unit's own: it stands between the units, or runs only in a later"
        " call of the model",
        fix="move that code into a module of its own, or raise the budget",
        unit=fault.segment,
    )


def names_of(exclusions: Iterable[Exclusion]) -> str:
    """Return the names of what was left out, for a message."""
    return ", ".join(e.unit for e in exclusions) or "none"


def _spans(graph: Graph, plan: Plan, label: str) -> tuple[Span, ...]:
    return resolve(graph, [s for s in plan.segments if segment_name(s) == label])


def _units_in(graph: Graph, spans: Iterable[Span]) -> Iterator[str]:
    """The units that begin within the spans, outer ones first; then those around, inner ones first.

    The root is not among them: without it nothing would be left to give up.
    """
    for span in spans:
        calls = [u for u in _first_calls(graph) if u.enter < span.stop and span.start < u.exit]
        inside = [u for u in calls if u.enter >= span.start]
        around = [u for u in calls if u.enter < span.start]
        for unit in (*inside, *reversed(around)):
            yield unit.name


def _would_change(graph: Graph, spans: Iterable[Span], name: str) -> bool:
    """Whether a unit makes anything within the spans that they do not keep."""
    calls = [unit for unit in _first_calls(graph) if unit.name == name]
    return any(
        graph.made_inside(value, span.start, span.stop) and value not in span.keep
        for span in spans
        for unit in calls
        for op in range(max(unit.enter, span.start), min(unit.exit, span.stop))
        for value in graph.outputs(op)
    )


def _first_calls(graph: Graph) -> Iterator[UnitCall]:
    """The calls of units within the first root call, parents before children."""
    return (u for u in graph.profile.units if u.root_call == 0 and u.name)
