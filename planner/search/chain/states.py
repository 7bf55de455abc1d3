"""The states and transitions of the dynamic program across blocks, as arrays.

Used by `planner.search.chain.dynamic_program` and `planner.search.chain.suffix`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
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


def undominated(options: Iterable[Option]) -> list[Option]:
    """Return the options of one run less those that another beats in time, need and freed bytes."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda o: (o.cost_ns, o.need_bytes, -o.freed_bytes)):
        if not any(
            k.need_bytes <= option.need_bytes and k.freed_bytes >= option.freed_bytes for k in kept
        ):
            kept.append(option)
    return kept


@dataclass(frozen=True, slots=True)
class Batch:
    """The options of one run of blocks as arrays."""

    first: int
    stop: int
    index: Ints
    freed: Ints
    need: Ints
    cost: Ints
    needs: list[int]
    frees: list[int]

    @staticmethod
    def of(first: int, members: list[int], options: Sequence[Option]) -> Batch:
        """Collect the options with numbers `members`, which share one run."""
        chosen = [options[i] for i in members]
        by_need = sorted((o.need_bytes, o.freed_bytes) for o in chosen)
        return Batch(
            first,
            chosen[0].stop,
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
class Front:
    """Pareto-optimal states at one block boundary, most freed first."""

    freed: Ints
    cost: Ints
    parent: Ints
    option: Ints

    @staticmethod
    def start() -> Front:
        """Return the one state before the first block."""
        zero = np.zeros(1, dtype=np.int64)
        return Front(zero, zero, zero - 1, zero - 1)

    def take(self, rows: Any) -> Front:
        """Return some of the states."""
        return Front(self.freed[rows], self.cost[rows], self.parent[rows], self.option[rows])

    def thinned(self, most: int) -> Front:
        """Keep the state that frees most of every stripe of equal width, and the cheapest."""
        width = max(1, int(self.freed[0] - self.freed[-1]) // (most - 1) + 1)
        stripe = (self.freed[0] - self.freed) // width
        first = np.flatnonzero(np.diff(stripe, prepend=-1))
        return self.take(np.union1d(first, [self.freed.size - 1]))


def arrive(batches: list[Batch], fronts: list[Front], budget_bytes: int) -> Front:
    """Return the states at the block where `batches` stop, from those where each starts.

    States that free most come first, so an option fits after a head of the front it starts from,
    and what it makes of that head is in order too: sorting has only to merge.
    """
    freed, cost, parts = [], [], []
    for batch in batches:
        front = fronts[batch.first]
        heads = np.searchsorted(-front.freed, budget_bytes - batch.need, side="right")
        for number, head in enumerate(heads.tolist()):
            freed.append(front.freed[:head] + batch.freed[number])
            cost.append(front.cost[:head] + batch.cost[number])
            parts.append((batch.index[number], head))
    options, heads = (np.array(column, dtype=np.int64) for column in zip(*parts, strict=True))
    all_freed, all_cost = np.concatenate(freed), np.concatenate(cost)
    rows = _pareto(all_freed, all_cost)
    stops = np.cumsum(heads)
    part = np.searchsorted(stops, rows, side="right")
    return Front(all_freed[rows], all_cost[rows], rows - (stops - heads)[part], options[part])


def _pareto(freed: Ints, cost: Ints) -> Ints:
    """Return the states that no other one beats, most freed first; of equal ones the first."""
    order = np.argsort(-freed, kind="stable")  # merges what is in order already
    ordered = cost[order]
    better = np.ones(ordered.size, dtype=bool)
    better[1:] = ordered[1:] < np.minimum.accumulate(ordered)[:-1]
    order = order[better]
    last = np.ones(order.size, dtype=bool)  # of those that free the same, the last costs least
    last[:-1] = np.diff(freed[order]) < 0
    rows: Ints = order[last]
    return rows
