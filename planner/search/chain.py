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

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to treat the blocks [first, stop).

    Attributes:
        first: first block.
        stop: one past the last block.
        freed_bytes: bytes gone between its forward and its backward.
        need_bytes: most bytes live while its own forward and backward run, if no block before it
            frees anything.
        cost_ns: added time.
        payload: what the caller makes of it.
    """

    first: int
    stop: int
    freed_bytes: int
    need_bytes: int
    cost_ns: int
    payload: Any = None


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The chosen options in order, their total time, and whether the search was exhaustive."""

    options: tuple[Option, ...]
    cost_ns: int
    exact: bool


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
        self.arriving: list[list[_Batch]] = [[] for _ in range(n_blocks + 1)]
        grouped: dict[tuple[int, int], list[int]] = {}
        for index, option in enumerate(self.options):
            grouped.setdefault((option.stop, option.first), []).append(index)
        for (stop, first), members in sorted(grouped.items()):
            self.arriving[stop].append(_Batch.of(first, members, self.options))

    def solve(self, budget_bytes: int, most_states: int = 1024) -> ChainResult | None:
        """Return the cheapest choice within the budget, or None when there is none.

        Args:
            budget_bytes: the budget.
            most_states: states kept at a block boundary; more is slower and closer to exact.
        """
        fronts = [_Front.start()]
        exact = True
        for stop in range(1, self.n_blocks + 1):
            front = _arrive(self.arriving[stop], fronts, budget_bytes)
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

    def _best(self, fronts: list[_Front], budget_bytes: int, exact: bool) -> ChainResult | None:
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


@dataclass(frozen=True, slots=True)
class _Batch:
    """The options of one range of blocks as arrays."""

    first: int
    index: Ints
    freed: Ints
    need: Ints
    cost: Ints
    needs: list[int]
    frees: list[int]

    @staticmethod
    def of(first: int, members: list[int], options: Sequence[Option]) -> _Batch:
        chosen = [options[i] for i in members]
        by_need = sorted((o.need_bytes, o.freed_bytes) for o in chosen)
        return _Batch(
            first,
            np.array(members, dtype=np.int64),
            np.array([o.freed_bytes for o in chosen], dtype=np.int64),
            np.array([o.need_bytes for o in chosen], dtype=np.int64),
            np.array([o.cost_ns for o in chosen], dtype=np.int64),
            [need for need, _ in by_need],
            list(accumulate((freed for _, freed in by_need), max)),
        )

    def most_freed(self, room_bytes: int) -> int | None:
        """Most bytes that an option which needs no more than `room_bytes` frees."""
        count = bisect_right(self.needs, room_bytes)
        return self.frees[count - 1] if count else None


@dataclass(frozen=True, slots=True)
class _Front:
    """Pareto-optimal states at one block boundary, most freed first."""

    freed: Ints
    cost: Ints
    parent: Ints
    option: Ints

    @staticmethod
    def start() -> _Front:
        zero = np.zeros(1, dtype=np.int64)
        return _Front(zero, zero, zero - 1, zero - 1)

    def take(self, rows: Any) -> _Front:
        return _Front(self.freed[rows], self.cost[rows], self.parent[rows], self.option[rows])

    def pruned(self) -> _Front:
        """Drop states that free no more and cost no less than another."""
        if self.freed.size < 2:
            return self
        ordered = self.take(np.lexsort((self.cost, -self.freed)))
        best = np.minimum.accumulate(ordered.cost)
        better = np.ones(ordered.cost.size, dtype=bool)
        better[1:] = ordered.cost[1:] < best[:-1]
        return ordered.take(np.flatnonzero(better))

    def thinned(self, most: int) -> _Front:
        """Keep the state that frees most of every stripe of equal width, and the cheapest."""
        width = max(1, int(self.freed[0] - self.freed[-1]) // (most - 1) + 1)
        stripe = (self.freed[0] - self.freed) // width
        first = np.flatnonzero(np.diff(stripe, prepend=-1))
        return self.take(np.union1d(first, [self.freed.size - 1]))


def _arrive(batches: list[_Batch], fronts: list[_Front], budget_bytes: int) -> _Front:
    parts = [_extend(batch, fronts[batch.first], budget_bytes) for batch in batches]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return _Front(*joined).pruned()


def _extend(batch: _Batch, front: _Front, budget_bytes: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Every state at the options' first block followed by every option that fits there."""
    fits = front.freed[:, None] >= batch.need[None, :] - budget_bytes
    state, choice = np.nonzero(fits)
    return (
        front.freed[state] + batch.freed[choice],
        front.cost[state] + batch.cost[choice],
        state,
        batch.index[choice],
    )
