"""`explain`: what a plan does in one unit, and what other choices would cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from planner.analysis.explanation import Alternative, Explanation, OtherBudget
from planner.analysis.stored_plan import found_exclusions, replayed_spans
from planner.documents import Plan, UnitCall
from planner.documents.printing.rows import short_label
from planner.errors import UnknownUnitError
from planner.graph import Graph, Span, emit
from planner.graph.address import Addresser, unit_of
from planner.graph.fate import GivenUp, Kept
from planner.graph.reasons import given_up_values, kept_values
from planner.graph.simulate import simulate
from planner.graph.span import IllegalSpanError
from planner.search.segment.spans import droppable, saved_inside, tight_spans
from planner.search.sweep import sweep_budgets

SHARES = (("10% less", 0.9), ("as planned", 1.0), ("10% more", 1.1))


def explain(graph: Graph, plan: Plan, unit: str) -> Explanation:
    """Return what a plan does in a unit.

    Args:
        graph: of the profile that the plan fits.
        plan: the plan.
        unit: qualified name; `.` for the root.

    Raises:
        UnknownUnitError: the profile has no such unit.
        StalePlanError: the plan names units or ops that the profile does not have.
    """
    name = "" if unit == "." else unit
    calls = _calls(graph, name)
    inside = frozenset(i for call in calls for i in range(call.enter, call.exit))
    spans = replayed_spans(graph, plan)
    mine = [span for span in spans if not inside.isdisjoint(range(span.start, span.stop))]
    saved = _saved(graph, inside)
    given_up, kept = _fates(graph, mine, name)
    return Explanation(
        unit=name,
        kind=calls[0].kind,
        calls=len(calls),
        saved_bytes=_bytes(graph, saved),
        given_up_bytes=_given_up_bytes(graph, spans, saved),
        segments=tuple(short_label(segment) for segment in emit(graph, mine)),
        given_up=given_up,
        kept=kept,
        untouched=_untouched(graph, calls, mine, saved),
        alternatives=_alternatives(graph, spans, calls, saved),
        budgets=_budgets(graph, plan, spans, saved),
    )


def _calls(graph: Graph, name: str) -> list[UnitCall]:
    units = [unit for unit in graph.profile.units if unit.root_call == 0]
    calls = [unit for unit in units if unit.name == name]
    if not calls:
        known = list(dict.fromkeys(unit.name for unit in units if unit.name))
        raise UnknownUnitError(name=name, near=near_names(name, known))
    return calls


def near_names(name: str, known: Sequence[str], most: int = 5) -> tuple[str, ...]:
    """Return the known names that are spelt almost like a name, or have it as a part.

    >>> near_names("h.O.mlp", ["wte", "h.0.mlp"]), near_names("mlp", ["h.0.mlp", "wpe"])
    (('h.0.mlp',), ('h.0.mlp',))
    """
    parts = [other for other in known if name in other.split(".")]
    close = get_close_matches(name, known, n=most, cutoff=0.6)
    return tuple(dict.fromkeys((*parts, *close)))[:most]


def _saved(graph: Graph, ops: Iterable[int]) -> frozenset[int]:
    """Return the values that these ops make and backward needs, parameters and inputs aside."""
    return frozenset(
        value
        for op in ops
        for value in graph.profile.ops[op].outputs
        if graph.saved_of(value)
        and graph.profile.storages[graph.storage_of(value)].category == "activation"
    )


def _bytes(graph: Graph, values: Iterable[int]) -> int:
    storages = {graph.storage_of(value) for value in values}
    return sum(graph.profile.storages[storage].bytes for storage in storages)


def _dropped(graph: Graph, span: Span) -> frozenset[int]:
    return saved_inside(graph, span.start, span.stop) - span.keep


def _given_up_bytes(graph: Graph, spans: Iterable[Span], saved: frozenset[int]) -> int:
    """Return the bytes of `saved` that are dropped: storages that nothing else keeps."""
    dropped = frozenset[int]().union(*(_dropped(graph, span) for span in spans)) & saved
    kept_storages = {graph.storage_of(value) for value in saved - dropped}
    return _bytes(graph, (v for v in dropped if graph.storage_of(v) not in kept_storages))


def _within(address: str, name: str) -> bool:
    unit = unit_of(address)
    return not name or unit == name or unit.startswith(f"{name}.")


def _fates(
    graph: Graph, spans: list[Span], name: str
) -> tuple[tuple[GivenUp, ...], tuple[Kept, ...]]:
    gone = (g for span in spans for g in given_up_values(graph, span))
    kept = (k for span in spans for k in kept_values(graph, span))
    return (
        tuple(g for g in gone if _within(g.address, name)),
        tuple(k for k in kept if _within(k.address, name)),
    )


def _untouched(
    graph: Graph, calls: list[UnitCall], spans: list[Span], saved: frozenset[int]
) -> tuple[tuple[str, int], ...]:
    """Return saved values outside all segments, with addresses relative to the unit's call."""
    covered = {i for span in spans for i in range(span.start, span.stop)}
    units, found = graph.profile.units, []
    for call in calls:
        addresser = Addresser()
        for op in range(call.enter, call.exit):
            inner = graph.profile.ops[op].unit
            at = units[inner].name if inner >= 0 else ""
            address = addresser.next(at, graph.profile.ops[op].name)
            if op not in covered:
                values = [v for v in graph.profile.ops[op].outputs if v in saved]
                found += [(address, graph.storage_bytes(value)) for value in values]
    return tuple(found)


def _alternatives(
    graph: Graph, spans: tuple[Span, ...], calls: list[UnitCall], saved: frozenset[int]
) -> tuple[Alternative, ...]:
    tries = [
        ("as planned", spans),
        ("keep all of it", _keeping(graph, spans, saved)),
        ("give up all of it", _giving_up(graph, spans, calls)),
    ]
    found = []
    for choice, other in tries:
        if choice != "as planned" and other == spans:
            continue  # it is what the plan does
        try:
            result = simulate(graph, other)
        except IllegalSpanError:
            continue
        ratio = result.overhead_ns / max(1, graph.profile.step_time_ns)
        found.append(Alternative(choice, result.peak_bytes, round(ratio, 6)))
    return tuple(found)


def _keeping(graph: Graph, spans: tuple[Span, ...], saved: frozenset[int]) -> tuple[Span, ...]:
    other = (replace(span, keep=span.keep | (_dropped(graph, span) & saved)) for span in spans)
    return tuple(span for span in other if _dropped(graph, span))


def _giving_up(graph: Graph, spans: tuple[Span, ...], calls: list[UnitCall]) -> tuple[Span, ...]:
    """Return spans that drop all that can be dropped, with new segments between the plan's own."""
    free = frozenset[int]()
    for call in calls:
        free |= droppable(graph, call.enter, call.exit)
    other = [replace(span, keep=span.keep - free) for span in spans]
    covered = frozenset(i for span in spans for i in range(span.start, span.stop))
    for call in calls:
        rest = frozenset(
            v
            for v in free
            if graph.profile.values[v].op not in covered
            and call.enter <= graph.profile.values[v].op < call.exit
        )
        if rest:
            other += tight_spans(graph, call.enter, call.exit, rest)
    return tuple(sorted(other, key=lambda span: span.start))


def _budgets(
    graph: Graph, plan: Plan, spans: tuple[Span, ...], saved: frozenset[int]
) -> tuple[OtherBudget, ...]:
    sizes = [int(plan.budget_bytes * share) for _, share in SHARES]
    extra = found_exclusions(plan, graph.profile)
    found = []
    for (name, share), size, best in zip(
        SHARES, sizes, sweep_budgets(graph, sizes, plan.pins, extra), strict=True
    ):
        if share == 1.0:
            given_up = _given_up_bytes(graph, spans, saved)
            ratio: float | None = plan.predicted_overhead_ratio
            found.append(OtherBudget(name, size, plan.predicted_peak_bytes, ratio, given_up))
        elif best is None:
            found.append(OtherBudget(name, size, None, None, 0))
        else:
            ratio = round(best.overhead_ns / max(1, graph.profile.step_time_ns), 6)
            given_up = _given_up_bytes(graph, best.spans, saved)
            found.append(OtherBudget(name, size, best.peak_bytes, ratio, given_up))
    return tuple(found)
