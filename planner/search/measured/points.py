"""From a point of a `Space` to the spans that it stands for, and from spans to the nearest point.

A point says what is dropped; where its segments then begin and end follows (`tight_spans`). Spans
that somebody else drew may differ from that: whoever needs them exactly remembers them by their
point (`remember`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.graph.model import Graph
from planner.graph.span import Span
from planner.search.measured.space import APART, JOINED, Level, Point, Slot, Space
from planner.search.pins import Wishes
from planner.search.segment.ranges import Range
from planner.search.segment.spans import saved_inside, tight_spans, with_cuts

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """Blocks that are joined."""

    first: int
    stop: int


class Points:
    """The points of one space on one graph.

    Args:
        graph: the step.
        wishes: pins and exclusions.
        space: blocks and levels.
    """

    def __init__(self, graph: Graph, wishes: Wishes, space: Space) -> None:
        self.graph = graph
        self.space = space
        self._remembered: dict[Key, tuple[Span, ...]] = {}
        self._range = lru_cache(maxsize=4096)(
            lambda i, j: Range(graph, space.edges[i : j + 1], wishes)
        )

    def spans(self, point: Point) -> tuple[Span, ...]:
        """Return the spans of a point; the simulator says whether the engine can run them."""
        known = self._remembered.get(self._key(point))
        if known is not None:
            return known
        return tuple(s for group in self._groups(point) for s in self._group(point, group))

    def remember(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the nearest point to some spans, which stands for exactly them from now on.

        The first spans at a point are those that it stands for.
        """
        point = self.nearest(spans)
        self._remembered.setdefault(self._key(point), tuple(spans))
        return point

    def nearest(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Return the point whose blocks drop and whose edges join what the spans do."""
        point: dict[str, Any] = {}
        dropped, held = dropped_and_held(self.graph, spans)
        for block in range(len(self.space)):
            state, edge = APART, self.space.edges[block]
            for span in spans:
                if span.start < edge < span.stop:
                    depth = dict(span.cuts).get(edge)
                    state = JOINED if depth is None else f"cut {depth}"
            if block:
                point[self.space.edge_key(block)] = state
            point[self.space.level_key(block)] = self._nearest_level(block, dropped, held)
        return {k: v for k, v in point.items() if k in self.space.parameters}

    def level_of(self, block: int, dropped: Iterable[int], held: Iterable[int]) -> Level:
        """Return what of these values a block gives up and holds, as a level."""
        here = self._range(block, block + 1)
        mine = here.droppable.intersection(dropped)
        start, stop = self.space.edges[block], self.space.edges[block + 1]
        inside = (v for v in held if start <= self.graph.profile.values[v].op < stop)
        storages = {self.graph.storage_of(v) for v in mine}
        freed = sum(self.graph.profile.storages[s].bytes for s in storages)
        return Level(freed, self._slots(block, mine), self._slots(block, inside))

    def _nearest_level(self, block: int, dropped: set[int], held: set[int]) -> int:
        asked = self.level_of(block, dropped, held)
        levels = self.space.levels[self.space.kinds[block]]
        if asked in levels:
            return levels.index(asked)
        off = [abs(level.freed_bytes - asked.freed_bytes) for level in levels]
        return off.index(min(off))

    def _key(self, point: Point) -> Key:
        return tuple(point.get(name) for name in self.space.parameters)

    def _groups(self, point: Point) -> Iterator[_Group]:
        first = 0
        for block in range(1, len(self.space) + 1):
            if block == len(self.space) or point[self.space.edge_key(block)] == APART:
                yield _Group(first, block)
                first = block

    def _group(self, point: Point, group: _Group) -> tuple[Span, ...]:
        here = self._range(group.first, group.stop)
        drop, hold = set(here.droppable), set(here.fixed)
        for block in range(group.first, group.stop):
            level = self._level(point, block)
            drop -= self._range(block, block + 1).droppable - self._values(block, level.drop)
            hold |= self._values(block, level.hold)
        drop |= here.forced
        if not drop:
            return ()
        spans = tight_spans(
            self.graph, here.start, here.stop, frozenset(drop), frozenset(hold - drop)
        )
        return with_cuts(spans, tuple(self._cuts(point, group)))

    def _cuts(self, point: Point, group: _Group) -> Iterator[tuple[int, int]]:
        for block in range(group.first + 1, group.stop):
            state = str(point[self.space.edge_key(block)])
            if state.startswith("cut "):
                yield self.space.edges[block], int(state.removeprefix("cut "))

    def _level(self, point: Point, block: int) -> Level:
        levels = self.space.levels[self.space.kinds[block]]
        return levels[int(point.get(self.space.level_key(block), 0))]

    def _values(self, block: int, slots: Iterable[Slot]) -> set[int]:
        start = self.space.edges[block]
        return {self.graph.outputs(start + op)[output] for op, output in slots}

    def _slots(self, block: int, values: Iterable[int]) -> tuple[Slot, ...]:
        start, maker = self.space.edges[block], self.graph.profile.values
        found = ((maker[v].op, self.graph.outputs(maker[v].op).index(v)) for v in values)
        return tuple(sorted((op - start, output) for op, output in found))


def dropped_and_held(graph: Graph, spans: Iterable[Span]) -> tuple[set[int], set[int]]:
    """Return the saved values that spans drop, and the unsaved ones that they keep."""
    dropped: set[int] = set()
    held: set[int] = set()
    for span in spans:
        saved = saved_inside(graph, span.start, span.stop)
        dropped |= saved - span.keep
        held |= span.keep - saved
    return dropped, held
