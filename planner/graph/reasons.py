"""What a span keeps and gives up, and why.

Why it keeps a value: the difference that a simulation shows when it is given up as well.
"""

from __future__ import annotations

from dataclasses import replace

from planner.graph.address import output_address
from planner.graph.effect import effects_of
from planner.graph.fate import GivenUp, Kept
from planner.graph.model import Graph
from planner.graph.span import IllegalSpanError, Span


def kept_values(graph: Graph, span: Span) -> tuple[Kept, ...]:
    """Return the kept values of a span in forward order, each with what giving it up would do."""
    addresses = graph.places.addresses(span.start, span.stop)
    return tuple(
        _kept(graph, span, value, output_address(address, output))
        for op, address in enumerate(addresses, span.start)
        for output, value in enumerate(graph.outputs(op))
        if value in span.keep
    )


def given_up_values(graph: Graph, span: Span) -> tuple[GivenUp, ...]:
    """Return what a span gives up, op by op, each with what keeping it would do.

    The outputs of an op count together: keeping one of them saves no run of the op.
    """
    addresses = graph.places.addresses(span.start, span.stop)
    found = []
    for op, address in enumerate(addresses, span.start):
        values = frozenset(value for value in graph.outputs(op) if _is_given_up(graph, span, value))
        if values:
            found.append(_given_up(graph, span, values, address))
    return tuple(found)


def _is_given_up(graph: Graph, span: Span, value: int) -> bool:
    return (
        value not in span.keep
        and bool(graph.packed_inside(value, span.start, span.stop))
        and graph.made_inside(value, span.start, span.stop)
    )


def _given_up(graph: Graph, span: Span, values: frozenset[int], address: str) -> GivenUp:
    storages = {graph.storage_of(value) for value in values}
    size = sum(graph.profile.storages[storage].bytes for storage in storages)
    freed, cost = _difference(graph, span, replace(span, keep=span.keep | values))
    return GivenUp(address, size, -freed, -cost)


def _kept(graph: Graph, span: Span, value: int, address: str) -> Kept:
    size = graph.storage_bytes(value)
    saved = bool(graph.packed_inside(value, span.start, span.stop))
    try:
        freed, cost = _difference(graph, span, replace(span, keep=span.keep - {value}))
    except IllegalSpanError:
        return Kept(address, size, saved, 0, 0, possible=False)
    storage = graph.storage_of(value)
    inside = sum(
        len(graph.packed_inside(v, span.start, span.stop))
        for op in range(span.start, span.stop)
        for v in graph.outputs(op)
        if graph.storage_of(v) == storage
    )
    held = inside < graph.packs[storage] or graph.unsaved_deaths[storage] >= graph.forward_stop
    return Kept(address, size, saved, 0 if held else freed, cost)


def _difference(graph: Graph, span: Span, other: Span) -> tuple[int, int]:
    """What `other` frees and what it costs more, over all root calls for time."""
    now, then = effects_of(graph, span), effects_of(graph, other)
    freed = now[0].kept_bytes - then[0].kept_bytes
    return freed, sum(e.replay_ns for e in then) - sum(e.replay_ns for e in now)
