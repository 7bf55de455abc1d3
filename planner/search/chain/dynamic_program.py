"""Across blocks: choose an option for every block, first to last, by dynamic programming.

Problem: forward runs blocks 0..n-1, backward runs them in reverse. An option covers blocks
[first, stop), frees some bytes from its forward to its backward, costs some time, and needs some
bytes while its own forward, replay and backward run. When option o runs backward, everything
before it is still as forward left it and everything after it is done, so it fits exactly when

    freed by the options before o  >=  need(o) - budget.

Method: states (bytes freed so far, time so far) at each block boundary; more freed and less time
is better in every constraint still to come, so only the Pareto-optimal states stay. This is the
knapsack form of the chain problem of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019
("Optimal checkpointing for heterogeneous chains"); options that cover several blocks, with a
nested replay inside, stand for its recursion.

Optimal: for the options given, when no state had to be thinned out (`ChainResult.exact`).
All numbers are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.search.chain.states import Batch, Front, Option, arrive
from planner.search.chain.suffix import Bound, SuffixBounds

_ROUGH_STATES = 96


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The chosen options in order, their total time, and whether the search was exhaustive."""

    options: tuple[Option, ...]
    cost_ns: int
    exact: bool

    def peak_bytes(self, top_bytes: int) -> int:
        """Return the smallest budget that these options fit, for a chain with that top."""
        freed, peak = 0, 0
        for option in self.options:
            peak = max(peak, option.need_bytes - freed)
            freed += option.freed_bytes
        return max(peak, top_bytes - freed)


class Chain:
    """Blocks 0..n-1 with their options, solved for one budget after another.

    Args:
        n_blocks: number of blocks.
        options: all options; every block needs at least one of its own.
        top_bytes: most bytes live between the last block's forward and its backward (the loss),
            if nothing is freed.
    """

    def __init__(self, n_blocks: int, options: Sequence[Option], top_bytes: int) -> None:
        self.n_blocks = n_blocks
        self.top_bytes = top_bytes
        self.options = tuple(options)
        self.arriving: list[list[Batch]] = [[] for _ in range(n_blocks + 1)]
        grouped: dict[tuple[int, int], list[int]] = {}
        for index, option in enumerate(self.options):
            grouped.setdefault((option.stop, option.first), []).append(index)
        for (stop, first), members in sorted(grouped.items()):
            self.arriving[stop].append(Batch.of(first, members, self.options))

    def solve(self, budget_bytes: int, most_states: int = 4096) -> ChainResult | None:
        """Return the cheapest choice within the budget, or None when there is none.

        A first pass with few states gives an upper bound; the second drops every state that
        cannot end below it.

        Args:
            budget_bytes: the budget.
            most_states: states kept at a block boundary; more is slower and closer to exact.
        """
        rough = self._pass(budget_bytes, _ROUGH_STATES, None, 0)
        if rough is None or rough.exact:
            return rough
        missing = max(0, self.top_bytes - budget_bytes)
        bound = self.suffix.tightest(missing)
        fine = self._pass(budget_bytes, most_states, bound, rough.cost_ns)
        return rough if fine is None or fine.cost_ns > rough.cost_ns else fine

    def bound(self, budget_bytes: int) -> float:
        """Return a lower bound in ns on what `solve` can reach."""
        missing = max(0, self.top_bytes - budget_bytes)
        freed = np.zeros(1, dtype=np.int64)
        return float(self.suffix.tightest(missing).remaining(0, freed)[0])

    @cached_property
    def suffix(self) -> SuffixBounds:
        """Lower bounds on the time of the blocks that are left."""
        return SuffixBounds(self.n_blocks, [b for row in self.arriving for b in row])

    def _pass(
        self, budget_bytes: int, most_states: int, bound: Bound | None, most_ns: int
    ) -> ChainResult | None:
        fronts = [Front.start()]
        exact = True
        for stop in range(1, self.n_blocks + 1):
            front = arrive(self.arriving[stop], fronts, budget_bytes)
            if bound is not None and front.freed.size:
                hopeful = front.cost + bound.remaining(stop, front.freed) <= most_ns
                front = front.take(np.flatnonzero(hopeful))
            if front.freed.size > most_states:
                front, exact = front.thinned(most_states), False
            fronts.append(front)
        return self._best(fronts, budget_bytes, exact)

    def lowest(self) -> int:
        """Return the smallest budget for which `solve` finds something."""
        low = 0
        high = max([self.top_bytes, *(o.need_bytes for o in self.options)], default=0)
        while low < high:
            middle = (low + high) // 2
            if self._reaches(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _reaches(self, budget_bytes: int) -> bool:
        """Feasible at all? Only the most freed bytes matter."""
        most = [0]
        for stop in range(1, self.n_blocks + 1):
            best = -1
            for batch in self.arriving[stop]:
                freed = most[batch.first]
                if freed >= 0:
                    more = batch.most_freed(budget_bytes + freed)
                    best = max(best, freed + more) if more is not None else best
            most.append(best)
        return most[-1] >= max(0, self.top_bytes - budget_bytes)

    def _best(self, fronts: list[Front], budget_bytes: int, exact: bool) -> ChainResult | None:
        last = fronts[-1]
        good = np.flatnonzero(last.freed >= self.top_bytes - budget_bytes)
        if not good.size:
            return None
        at = int(good[np.argmin(last.cost[good])])
        cost = int(last.cost[at])
        chosen: list[Option] = []
        stop = self.n_blocks
        while stop:
            option = self.options[int(fronts[stop].option[at])]
            at = int(fronts[stop].parent[at])
            chosen.append(option)
            stop = option.first
        return ChainResult(tuple(reversed(chosen)), cost, exact)
