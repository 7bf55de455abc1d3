"""Spans to the segments of a plan, and back.

A plan names things that survive small changes of the model (units, addresses); a graph numbers
them. `resolve(graph, emit(graph, spans))` gives the spans again.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.documents.plan import Boundary, Cut, Segment
from planner.errors import StalePlanError
from planner.graph.address import unit_of
from planner.graph.effect import effects_of
from planner.graph.model import Graph
from planner.graph.span import Span


def emit(graph: Graph, spans: Sequence[Span]) -> tuple[Segment, ...]:
    """Return the spans as segments in forward order, with their statistics.

    Times and numbers of ops count every root call; bytes are those of the first.
    """
    return tuple(_segment(graph, span) for span in sorted(spans, key=lambda s: s.start))


def _segment(graph: Graph, span: Span) -> Segment:
    places, effects = graph.places, effects_of(graph, span)
    addresses = places.addresses(span.start, span.stop)
    return Segment(
        start=places.boundary(span.start, "enter"),
        end=places.boundary(span.stop, "exit"),
        runtime="replay",
        keep=places.keep_addresses(span),
        cuts=tuple(Cut(addresses[p - span.start], depth) for p, depth in span.cuts),
        saved_bytes=effects[0].saved_bytes,
        kept_bytes=effects[0].kept_bytes,
        recompute_ns=sum(effect.replay_ns for effect in effects),
        replayed_ops=sum(effect.replayed_ops for effect in effects),
    )


def resolve(graph: Graph, segments: Sequence[Segment]) -> tuple[Span, ...]:
    """Return the spans that segments stand for in this graph.

    Raises:
        StalePlanError: units or ops that the segments name are not there; `units` names them.
    """
    missing: dict[str, None] = {}
    spans = [_span(graph, segment, missing) for segment in segments]
    if missing:
        raise StalePlanError(units=tuple(missing))
    return tuple(span for span in spans if span is not None)


def _span(graph: Graph, segment: Segment, missing: dict[str, None]) -> Span | None:
    edges = [_position(graph, b, missing) for b in (segment.start, segment.end)]
    start, stop = edges
    if start is None or stop is None:
        return None
    if start >= stop:
        missing.update(dict.fromkeys((segment.start.unit or ".", segment.end.unit or ".")))
        return None
    index = graph.places.index(start, stop)
    keep, cuts = [], []
    for address in segment.keep:
        value = graph.places.kept_value(address, index)
        _note(value, address, missing)
        keep.append(value)
    for cut in segment.cuts:
        _note(index.get(cut.at), cut.at, missing)
        cuts.append((index.get(cut.at, -1), cut.depth))
    return Span(start, stop, frozenset(v for v in keep if v is not None), tuple(cuts))


def _position(graph: Graph, boundary: Boundary, missing: dict[str, None]) -> int | None:
    position = graph.places.position(boundary)
    _note(position, f"{boundary.unit or '.'}/edge/0", missing)
    return position


def _note(found: int | None, address: str, missing: dict[str, None]) -> None:
    if found is None:
        missing[unit_of(address) or "."] = None
