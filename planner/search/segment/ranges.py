"""Proposals for one range of ops: which saved values to drop, what to keep, where to cut."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.graph.cost import REPLAY_OP_NS, TAPE_OP_NS
from planner.graph.model import Graph
from planner.graph.span import Span
from planner.replay.held_states import STATE_BYTES
from planner.search.pins import Wishes
from planner.search.segment.keep_milp import fill
from planner.search.segment.min_cut import Choice, KeepProblem, hull
from planner.search.segment.nested import nested_cuts
from planner.search.segment.spans import Cuts, droppable, tight_spans, with_cuts

MOST_LEVELS = 3
"""Deepest nesting of cuts; each level costs about one more forward of the range."""
FAR_PARTS = 5
"""Corners of a frontier are distant when more than this part of its width lies between."""
MOST_CUTS = 14
"""Minimum cuts per frontier."""
COARSE_CUTS = 3
"""And of a coarse one."""


class Range:
    """Ops [edges[0], edges[-1]).

    Args:
        graph: the step.
        edges: the ends and the block edges between.
        wishes: pins and exclusions.
        marks: positions where the replay may be cut; the edges when empty.
        op_ns: the time of each op of the step; by default as the profile has it.
        coarse: look for few points of a frontier.
    """

    def __init__(
        self,
        graph: Graph,
        edges: Sequence[int],
        wishes: Wishes,
        marks: Sequence[int] = (),
        op_ns: Sequence[int] | None = None,
        coarse: bool = False,
    ) -> None:
        self.coarse = coarse
        self.op_ns = [op.time_ns for op in graph.profile.ops] if op_ns is None else op_ns
        self.graph = graph
        self.edges = tuple(edges)
        inside = marks[bisect_right(marks, edges[0]) : bisect_left(marks, edges[-1])]
        self.marks = (edges[0], *inside, edges[-1]) if marks else self.edges
        self.start, self.stop = edges[0], edges[-1]
        self.wishes = wishes
        stay = wishes.saved | wishes.excluded if not wishes.plain() else frozenset()
        self.droppable = droppable(graph, self.start, self.stop, stay)
        self.forced = self._forced()
        self.fixed = self._made_by(wishes.excluded)

    def proposals(self, frontier: bool, ways: Sequence[Cuts] = ()) -> Iterator[tuple[Span, ...]]:
        """Yield span tuples, cheapest in time first: as little as possible, ..., everything.

        Args:
            frontier: whether to look for keep sets between those.
            ways: where to cut the replay of everything; a few are found here if there are none.
        """
        least = frozenset(self.forced)
        yield self._spans(least)
        if not self.droppable:
            return
        if frontier:
            for choice in self._choices():
                yield self.spans_of(choice)
        everything = self._spans(self.droppable)
        yield everything
        for cuts in ways or self._nested():
            yield with_cuts(everything, cuts)

    def _nested(self) -> Iterator[Cuts]:
        levels = range(1, MOST_LEVELS + 1)
        return (self._cuts(n) for n in levels if 2**n < len(self.marks))

    def _choices(self) -> Iterator[Choice[int]]:
        """The corners of the frontier; in a single block, points between distant ones too.

        Which generator states are held depends on what spans the choices of all blocks lead to.
        So the frontier without states is looked through as well, and the simulator judges.
        """
        problem = self.problem()
        yield from self._frontier(problem)
        if problem.drawn_after:
            yield from self._frontier(replace(problem, drawn_after={}))

    def _frontier(self, problem: KeepProblem[int]) -> Iterator[Choice[int]]:
        corners = hull(problem, COARSE_CUTS if self.coarse else MOST_CUTS)
        yield from corners
        if self.coarse:
            return
        far = (corners[0].kept_bytes - corners[-1].kept_bytes) // FAR_PARTS
        for left, right in pairwise(corners) if len(self.edges) == 2 else ():
            if left.kept_bytes - right.kept_bytes > far:
                between = fill(problem, (left.kept_bytes + right.kept_bytes) // 2)
                if between is not None:
                    yield between

    def is_joined(self, spans: tuple[Span, ...]) -> bool:
        """Return whether some span crosses every inner edge.

        Otherwise the proposal is made of proposals of shorter ranges.
        """
        return all(any(s.start < edge < s.stop for s in spans) for edge in self.edges[1:-1])

    def spans_of(self, choice: Choice[int]) -> tuple[Span, ...]:
        """Return the spans of a choice on this range's problem."""
        return self._spans(self.droppable - choice.keep, choice.keep)

    def problem(self) -> KeepProblem[int]:
        """Return what to keep of this range as a problem on its own."""
        graph = self.graph
        ops = range(self.start, self.stop)
        out = self.wishes.excluded
        flows = [graph.flow(i) for i in ops]
        reads = [() if i in out else f.reads for i, f in zip(ops, flows, strict=True)]
        makes = [
            () if i in out else graph.outputs(i) if f.reads or f.makes else ()
            for i, f in zip(ops, flows, strict=True)
        ]
        touched = dict.fromkeys(v for row in (*reads, *makes) for v in row)
        return KeepProblem(
            reads,
            makes,
            [self.op_ns[i] + REPLAY_OP_NS + TAPE_OP_NS for i in ops],
            self.droppable,
            {v: size for v in touched if (size := self._keep_bytes(v))},
            frozenset(v for v in touched if self._lost(v)) | self.forced,
            self._draws(),
            STATE_BYTES,
        )

    def _draws(self) -> dict[int, int]:
        """The random ops and the one right before each, where states are memory of the device."""
        if self.graph.profile.step.device != "cpu":
            return {}
        random = self.graph.random_inside(self.start, self.stop)
        return dict(zip(random, [-1, *random], strict=False))

    def _keep_bytes(self, value: int) -> int:
        """Bytes that keeping a value costs; 0 when it stays anyway."""
        graph = self.graph
        storage = graph.storage_of(value)
        size = graph.profile.storages[storage].bytes
        if value in self.droppable:
            return size
        if graph.packs[storage] or graph.unsaved_deaths[storage] >= graph.forward_stop:
            return 0
        return size

    def _lost(self, value: int) -> bool:
        """Overwritten in forward, so that it cannot be a source."""
        writer = self.graph.overwritten_at(value)
        inside = self.start <= writer < self.stop
        made = self.graph.made_inside(value, self.start, self.stop)
        return 0 <= writer < self.graph.forward_stop and (made or not inside)

    def _spans(
        self,
        dropped: frozenset[int],
        keep: frozenset[int] = frozenset(),
    ) -> tuple[Span, ...]:
        if not dropped:
            return ()
        held = (keep | self.fixed) - dropped
        return tight_spans(self.graph, self.start, self.stop, dropped, held)

    def _cuts(self, levels: int) -> Cuts:
        graph, edges = self.graph, self.marks
        inside = [0] * (len(edges) - 1)
        entering = [0] * (len(edges) - 1)
        lasts: dict[int, int] = {}
        for value in self.droppable:
            storage = graph.storage_of(value)
            last = max(tensor.packed_at for tensor in graph.saved_of(value))
            lasts[storage] = max(last, lasts.get(storage, 0))
        for storage, last in lasts.items():
            life = graph.profile.storages[storage]
            block = bisect_right(edges, life.birth) - 1
            inside[block] += life.bytes
            for later in range(block + 1, bisect_right(edges, last, hi=len(edges) - 1)):
                entering[later] += life.bytes
        cuts = nested_cuts(inside, entering, levels)
        return tuple((edges[block], depth) for block, depth in cuts)

    def _forced(self) -> frozenset[int]:
        graph, found = self.graph, set()
        for op, stop in self.wishes.forced:
            if self.start <= op < self.stop:
                for value in graph.outputs(op):
                    inside = len(graph.packed_inside(value, self.start, stop))
                    if value in self.droppable and inside == len(graph.saved_of(value)):
                        found.add(value)
        return frozenset(found)

    def _made_by(self, ops: frozenset[int]) -> frozenset[int]:
        """Values that excluded ops made: they stay, and replay starts from them."""
        inside = (op for op in ops if self.start <= op < self.stop)
        return frozenset(
            value
            for op in inside
            for value in self.graph.outputs(op)
            if self.graph.made_inside(value, self.start, self.stop)
        )
