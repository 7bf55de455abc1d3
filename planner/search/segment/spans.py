"""From a choice of dropped values to tight spans.

Every op under a tape costs time, and everything that one span drops is replayed at once. So the
values to drop are grouped: two belong together only when their replays or the stretches between
making and packing overlap. Each group gets the shortest legal span.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

from planner.graph.model import Graph
from planner.graph.span import Span

Cuts = tuple[tuple[int, int], ...]


def droppable(graph: Graph, start: int, stop: int, pinned: Collection[int] = ()) -> frozenset[int]:
    """Return the saved values of [start, stop) that giving up would free.

    All packs of the value's storage lie inside, a replayable op made each packed version, nothing
    else holds it until backward, and none of its makers is in `pinned` (ops whose values stay).
    A value that forward reads beyond (a skip connection) counts as kept by its reader, which may
    have to be replayed from it.
    """
    last_reads = _last_reads(graph)
    found: dict[int, list[int]] = {}
    barred: set[int] = set()
    for index in range(start, stop):
        flow = graph.flow(index)
        for value in (*flow.makes, *(new for _, new in flow.writes)):
            inside = len(graph.packed_inside(value, start, stop))
            if not inside:
                continue
            storage = graph.storage_of(value)
            found.setdefault(storage, []).extend([value] * inside)
            if (
                index in pinned
                or graph.overwritten_at(value) >= 0
                or not graph.made_inside(value, start, stop)
                or last_reads.get(storage, -1) >= stop
                or _stays_anyway(graph, value)
            ):
                barred.add(storage)
    return frozenset(
        value
        for storage, values in found.items()
        if storage not in barred and len(values) == graph.packs[storage]
        for value in values
        if graph.profile.storages[storage].bytes
    )


_known_reads: WeakKeyDictionary[Graph, dict[int, int]] = WeakKeyDictionary()


def _last_reads(graph: Graph) -> dict[int, int]:
    """For each storage, the last op of the first root call that reads it."""
    known = _known_reads.get(graph)
    if known is None:
        known = {}
        for index in range(graph.legal_positions[-1] if graph.legal_positions else 0):
            for value in graph.profile.ops[index].inputs:
                known[graph.storage_of(value)] = index
        _known_reads[graph] = known
    return known


def _stays_anyway(graph: Graph, value: int) -> bool:
    """Something other than autograd holds the storage until backward needs it."""
    needed = [t.unpacked_at for t in graph.saved_of(value) if t.unpacked_at >= 0]
    return graph.unsaved_deaths[graph.storage_of(value)] >= min(needed, default=graph.n_ops) - 1


def tight_spans(
    graph: Graph,
    start: int,
    stop: int,
    dropped: frozenset[int],
    keep: frozenset[int] = frozenset(),
) -> tuple[Span, ...]:
    """Return the shortest spans within [start, stop) that drop exactly `dropped`.

    Args:
        graph: the graph.
        start: first position allowed.
        stop: last position allowed.
        dropped: values to drop; all are in `droppable(graph, start, stop)`.
        keep: unsaved values that stay to shorten the replay.
    """
    held = keep | saved_inside(graph, start, stop) - dropped
    first = _first_ops(graph, start, stop, held)
    needed = [(first[value], last_pack(graph, start, value)) for value in dropped]
    return tuple(
        Span(low, high, frozenset(v for v in held if low <= graph.profile.values[v].op < high))
        for low, high in _merged(graph, start, stop, needed)
    )


def with_cuts(spans: tuple[Span, ...], cuts: Cuts) -> tuple[Span, ...]:
    """Return the spans with those of the cuts that stand inside them."""
    return tuple(
        replace(span, cuts=tuple(c for c in cuts if span.start < c[0] < span.stop))
        for span in spans
    )


def saved_inside(graph: Graph, start: int, stop: int) -> frozenset[int]:
    """Return the values that replayable ops of [start, stop) make and that anybody saves."""
    return frozenset(
        value
        for index in range(start, stop)
        for flow in (graph.flow(index),)
        for value in (*flow.makes, *(new for _, new in flow.writes))
        if graph.saved_of(value)
    )


def _first_ops(graph: Graph, start: int, stop: int, held: frozenset[int]) -> dict[int, int]:
    """For each value made in [start, stop): the first op that making it again would run."""
    first: dict[int, int] = {}
    for index in range(start, stop):
        flow = graph.flow(index)
        low = min((first[r] for r in flow.reads if r in first and r not in held), default=index)
        for value in (*flow.makes, *(new for _, new in flow.writes)):
            first[value] = min(low, index)
    return first


def last_pack(graph: Graph, start: int, value: int) -> int:
    """Return the first position where a span can stop with all packs of the value inside."""
    saved = graph.saved_of(value)
    last = max(tensor.packed_at for tensor in saved)
    complete = len(graph.packed_inside(value, start, last)) == len(saved)
    return last if complete else last + 1


def _merged(
    graph: Graph, start: int, stop: int, needed: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Grow every stretch to legal positions and join those that overlap."""
    legal = graph.legal_positions
    out: list[tuple[int, int]] = []
    grown = sorted(
        (
            max(start, legal[bisect_right(legal, low) - 1]),
            min(stop, legal[bisect_left(legal, high)]),
        )
        for low, high in needed
    )
    for low, high in grown:
        if out and low < out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out
