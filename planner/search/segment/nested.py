"""Where to cut a long segment's replay so that its working set is smallest.

Problem: a segment of blocks is replayed in backward. Replayed at once, all its values are live
together. Cut in parts, a first run makes only the values at the cuts; then every part is replayed
when backward gets there, last part first; parts are cut again, and so on. Each level of cuts costs
about one more forward.

Method: with m bytes of room and d levels, the first part may use all m bytes with d-1 levels, the
second what is left beside the first cut's values, and so on; parts as long as fits, and the
smallest m that reaches the end by bisection. For equal blocks this gives the binomial lengths of
Griewank and Walther 2000 ("Revolve"), which are optimal; for unequal blocks it is the greedy form
of the recursion in Beaumont et al. 2019, "Optimal checkpointing for heterogeneous chains".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Cuts = list[tuple[int, int]]


def nested_cuts(inside_bytes: Sequence[int], edge_bytes: Sequence[int], levels: int) -> Cuts:
    """Return cuts as (block, depth): a cut at block b stands before it.

    Args:
        inside_bytes: for each block, bytes live when it alone is replayed.
        edge_bytes: for each block, bytes of the values that enter it from the block before.
        levels: how deep to cut; 0 gives no cuts.
    """
    chain = _Room(inside_bytes, edge_bytes)
    low, high = 0, chain.sums[-1]
    while low < high:
        middle = (low + high) // 2
        if chain.reach(0, middle, levels) >= chain.n:
            high = middle
        else:
            low = middle + 1
    return chain.cuts(0, chain.n, high, levels, 1)


class _Room:
    """How far a replay gets within so many bytes."""

    def __init__(self, inside_bytes: Sequence[int], edge_bytes: Sequence[int]) -> None:
        self.n = len(inside_bytes)
        self.edge = edge_bytes
        self.sums = [0, *accumulate(inside_bytes)]
        self.known: dict[tuple[int, int, int], int] = {}

    def reach(self, start: int, room: int, levels: int) -> int:
        """One past the last block that a replay from `start` can cover."""
        if room < 0:
            return start
        if levels == 0:
            return self._whole(start, room)
        key = (start, room, levels)
        if key not in self.known:
            self.known[key] = self._parts(start, room, levels)[-1]
        return self.known[key]

    def _whole(self, start: int, room: int) -> int:
        stop = start
        while stop < self.n and self.sums[stop + 1] - self.sums[start] <= room:
            stop += 1
        return stop

    def _parts(self, start: int, room: int, levels: int) -> list[int]:
        """Ends of the parts, as long as each can be; at least one entry."""
        ends = [self.reach(start, room, levels - 1)]
        while start < ends[-1] < self.n:
            room -= self.edge[ends[-1]]
            after = self.reach(ends[-1], room, levels - 1)
            if after == ends[-1]:
                break
            ends.append(after)
        return ends

    def cuts(self, start: int, stop: int, room: int, levels: int, depth: int) -> Cuts:
        """The cuts of a replay that covers [start, stop)."""
        if levels == 0:
            return []
        ends = [min(e, stop) for e in self._parts(start, room, levels)]
        found: Cuts = []
        for low, high in zip([start, *ends], ends, strict=False):
            if low < high:
                found += self.cuts(low, high, room, levels - 1, depth + 1)
                if high < stop:
                    found.append((high, depth))
                    room -= self.edge[high]
        return sorted(found)
