"""A lower bound on the overhead of any plan, to say how far from the best a plan may be.

At a moment t after forward, everything that backward has yet to ask for must be made from what is
live at t. So the replay time of any plan within a budget is at least that of the best keep set of
the whole forward with as many kept bytes as the budget leaves at t; spans and cuts only add
limits. The linear relaxation of that problem (`search.segment.keep_milp.least_ns`) bounds it from
below. Tapes count too: one lies over every op that runs again and over all ops from the making of
a given-up value to its last pack, from one module boundary to another, and opening one has its
price. The best of a few moments is taken.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from planner.graph.cost import TAPE_OP_NS, TAPE_SPAN_NS
from planner.graph.model import Graph
from planner.search.pins import Wishes
from planner.search.segment.keep_milp import Tapes, least_ns
from planner.search.segment.min_cut import KeepProblem
from planner.search.segment.ranges import Range
from planner.search.segment.spans import last_pack

_MOMENTS = 8
"""Tried; the peak is mostly where backward begins, so more of them are there."""
_WHOLE_OPS = 200
_WHOLE_NODES = 50
"""For forwards of so few ops, the bound is improved by branching, so far."""


class LowerBound:
    """Bounds for one graph under one set of wishes.

    Args:
        graph: the step; there is a bound only when it calls the model once.
        edges: first and last position of the root call.
        wishes: pins and exclusions.
    """

    def __init__(self, graph: Graph, edges: tuple[int, int], wishes: Wishes) -> None:
        self.graph = graph
        self.problem: KeepProblem[int] | None = None
        self.tapes: Tapes[int] | None = None
        self.moments: list[int] = []
        if len(graph.root_calls) == 1 and edges[1] < graph.n_ops:
            whole = Range(graph, edges, wishes)
            problem = whole.problem()
            bare = [ns - TAPE_OP_NS for ns in problem.cost_ns]
            # A shorter span finds a value that is overwritten outside, and holds a copy of it.
            self.problem = replace(problem, cost_ns=bare, banned=whole.forced)
            self.tapes = _tapes(graph, edges, problem.needed)
            self.moments = _moments(graph, edges[1])

    def least_overhead_ns(self, budget_bytes: int) -> int | None:
        """Return a bound in ns on the overhead of every plan within a budget; None if unknown."""
        if self.problem is None:
            return None
        known: dict[int, float] = {}
        for moment in self.moments:
            if int(self.graph.plain_live[moment]) > budget_bytes:
                bound = self._at(self.problem, moment, budget_bytes, 0)
                if bound is not None and not math.isinf(bound):
                    known[moment] = bound
        if not known:
            return None
        best = max(known, key=lambda moment: known[moment])
        if len(self.problem.reads) <= _WHOLE_OPS:
            whole = self._at(self.problem, best, budget_bytes, _WHOLE_NODES)
            if whole is not None and not math.isinf(whole):
                known[best] = max(known[best], whole)
        # HiGHS works to a tolerance; stay below it.
        return int(known[best] * (1 - 1e-6)) or None

    def _at(
        self, problem: KeepProblem[int], moment: int, budget_bytes: int, nodes: int
    ) -> float | None:
        graph = self.graph
        later = frozenset(v for v in problem.needed if self._asked_after(v, moment))
        # Dropping a value that is never unpacked costs no replay.
        never = (v for v in problem.needed if self._first_asked(v) < 0)
        storages = {graph.storage_of(v) for v in (*later, *never)}
        gone = sum(self._live_bytes(s, moment) for s in storages)
        fixed = int(graph.plain_live[moment]) - gone
        sizes = {
            v: size
            for v, size in problem.size_bytes.items()
            if v in later or v not in problem.needed
        }
        part = replace(problem, needed=later, size_bytes=sizes, drawn_after={})
        return least_ns(part, budget_bytes - fixed, self.tapes, nodes)

    def _asked_after(self, value: int, moment: int) -> bool:
        """Live at the moment in the plain step, and unpacked only after it."""
        live = self._live_bytes(self.graph.storage_of(value), moment) > 0
        return live and self._first_asked(value) > moment

    def _first_asked(self, value: int) -> int:
        needed = (t.unpacked_at for t in self.graph.saved_of(value) if t.unpacked_at >= 0)
        return min(needed, default=-1)

    def _live_bytes(self, number: int, moment: int) -> int:
        storage = self.graph.profile.storages[number]
        return storage.bytes if storage.birth <= moment <= storage.death else 0


def _moments(graph: Graph, first: int) -> list[int]:
    """The moments of most live bytes in parts of what follows forward, short ones first."""
    ops = np.arange(first, graph.n_ops)
    stops = [len(ops) * (part * part) // (_MOMENTS * _MOMENTS) for part in range(1, _MOMENTS)]
    parts = [part for part in np.split(ops, stops) if part.size]
    return [int(part[graph.plain_live[part].argmax()]) for part in parts]


def _tapes(graph: Graph, edges: tuple[int, int], needed: Iterable[int]) -> Tapes[int]:
    """What tapes over the first root call cost: cells are the ops between legal positions."""
    first, stop = edges
    marks = [p for p in graph.legal_positions if first <= p <= stop]
    cell_of = [bisect_right(marks, op) - 1 for op in range(first, stop)]
    covers = {}
    for value in needed:
        maker, last = graph.profile.values[value].op, last_pack(graph, first, value)
        covers[value] = range(cell_of[maker - first], cell_of[last - 1 - first] + 1)
    cells = [(b - a) * TAPE_OP_NS for a, b in pairwise(marks)]
    return Tapes(cell_of, cells, TAPE_SPAN_NS, covers)
