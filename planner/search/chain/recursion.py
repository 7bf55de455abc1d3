"""Every good way to replay a run of blocks in parts: less room for more time.

Problem: a run of blocks was dropped and is replayed in backward, with its entry at hand. At once,
all its values are live together. Or a first pass makes only what enters block k, the blocks from k
on are replayed, and when backward has used them, those before k are. Both sides may be parted
again. A block on the way of a pass may also be held whole by it, and need not run again.

Method: the dynamic program over intervals of Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova
2019, "Optimal checkpointing for heterogeneous chains", section 4, for all amounts of memory at
once: an interval has a front of (room, time) instead of one time for each discrete amount. What is
live besides (gradients so far, the gradient passed down, temporaries) differs from block to block
and counts, so that parts are short where little room is left. Rooms of an interval are relative to
what is live when its backward is about to begin; so equal intervals have equal fronts.

Optimal: over persistent schedules of the blocks, as far as `Facts` are exact and no front had to
be thinned. The simulator measures what comes out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from planner.search.chain.facts import Facts


@dataclass(frozen=True, slots=True)
class Way:
    """One way to replay an interval.

    Attributes:
        room_bytes: most bytes live over what is live before the interval's backward begins.
        time_ns: of all runs of its blocks.
        cut: where it is parted, in blocks from its start; 0 for nowhere.
        held: whether the pass holds the blocks before the cut.
        before, after: ways of both sides; none before the cut where the pass holds it.
    """

    room_bytes: int
    time_ns: int
    cut: int = 0
    held: bool = False
    before: Way | None = None
    after: Way | None = None

    def cuts(self, start: int = 0, depth: int = 1) -> Iterator[tuple[int, int]]:
        """Yield (block, depth) of every cut, first to last, for an interval from `start` on."""
        if self.before is not None:
            yield from self.before.cuts(start, depth + 1)
        if self.cut:
            yield start + self.cut, -depth if self.held else depth
        if self.after is not None:
            yield from self.after.cuts(start + self.cut, depth)


class Recursion:
    """Fronts of all intervals, made on demand.

    Args:
        facts: the blocks.
        kinds: for each block, what equal blocks share.
        most: ways kept of an interval; more is slower and closer to exact.
    """

    def __init__(self, facts: Facts, kinds: Sequence[Hashable], most: int) -> None:
        self.facts = facts
        self.most = most
        besides = (facts.backward - facts.pending[1:]).tolist()
        self.rows = tuple(zip(kinds, besides, facts.growth.tolist(), strict=True))
        self.steps = tuple(np.diff(facts.pending).tolist())
        self.run_ns = [0, *accumulate(map(int, facts.run_ns))]
        self.known: dict[Hashable, list[Way]] = {}

    def front(self, start: int, stop: int) -> list[Way]:
        """Return the ways to replay blocks [start, stop), least room last."""
        key = (self.rows[start:stop], self.steps[start + 1 : stop])
        if key not in self.known:
            ways = [self._whole(start, stop), *self._held(start, stop)]
            for cut in range(start + 1, stop):
                ways += self._parted(start, cut, stop)
            self.known[key] = thinned(_undominated(ways), self.most)
        return self.known[key]

    def _whole(self, start: int, stop: int) -> Way:
        facts, saved, room = self.facts, 0, 0
        base = int(facts.pending[stop])
        for block in range(start, stop):
            besides = int(facts.backward[block]) - base
            asked = saved + int(facts.own[block])
            room = max(room, saved + int(facts.growth[block]), asked + besides)
            saved += int(facts.inside[block])
        return Way(room, self.run_ns[stop] - self.run_ns[start])

    def _held(self, start: int, stop: int) -> Iterator[Way]:
        """The pass holds the first block, and goes on to a cut after it."""
        if stop - start < 2:
            return
        facts, cut = self.facts, start + 1
        most = int(facts.backward[start] - facts.pending[stop] + facts.own[start])
        most = max(most, int(facts.growth[start]))
        aside = max(int(facts.inside[start]), int(facts.crossing[start, cut]))
        time = self.run_ns[cut] - self.run_ns[start]
        for after in self.front(cut, stop):
            if after.cut:
                room = max(most, aside + after.room_bytes)
                yield Way(room, time + after.time_ns, 1, True, None, after)

    def _parted(self, start: int, cut: int, stop: int) -> Iterator[Way]:
        """The pass makes what enters the cut."""
        facts = self.facts
        cells = int(facts.crossing[start, cut])
        later = int(facts.pending[cut] - facts.pending[stop])
        on_the_way = self._pass_bytes(start, cut)
        time = self.run_ns[cut] - self.run_ns[start]
        before, after = self.front(start, cut), self.front(cut, stop)
        i = j = 0  # most room first on both sides
        while True:
            left, right = before[i], after[j]
            room = max(on_the_way, left.room_bytes + later, right.room_bytes + cells)
            yield Way(room, time + left.time_ns + right.time_ns, cut - start, False, left, right)
            if left.room_bytes + later < room and right.room_bytes + cells < room:
                return  # the pass itself takes the room
            if left.room_bytes + later == room:
                i += 1
            if right.room_bytes + cells == room:
                j += 1
            if i == len(before) or j == len(after):
                return

    def _pass_bytes(self, start: int, cut: int) -> int:
        growth, crossing = self.facts.growth, self.facts.crossing
        return int((growth[start:cut] + crossing[start, start:cut]).max())


def _undominated(ways: list[Way]) -> list[Way]:
    """The ways that no other beats, most room first."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda w: (w.time_ns, w.room_bytes)):
        if not kept or way.room_bytes < kept[-1].room_bytes:
            kept.append(way)
    return kept


def thinned(ways: list[Way], most: int) -> list[Way]:
    """Return at most so many of the ways, evenly spread; the last, with the least room, stays."""
    if len(ways) <= most:
        return ways
    step = (len(ways) - 1) / max(1, most - 1)
    return [ways[round(len(ways) - 1 - i * step)] for i in reversed(range(most))]
