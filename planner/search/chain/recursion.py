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
from operator import add, itemgetter
from typing import NamedTuple

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


class _Draft(NamedTuple):
    """A way not made yet, cheap to compare: many are found for each that is kept.

    Attributes:
        sides: the ways before and after the cut.
    """

    time_ns: int
    room_bytes: int
    cut: int = 0
    held: bool = False
    sides: tuple[Way | None, Way | None] = (None, None)

    def way(self) -> Way:
        return Way(self.room_bytes, self.time_ns, self.cut, self.held, *self.sides)


class Recursion:
    """Fronts of all intervals, made on demand.

    Args:
        facts: the blocks.
        kinds: for each block, what equal blocks share.
        most: ways kept of an interval; more is slower and closer to exact.
    """

    def __init__(self, facts: Facts, kinds: Sequence[Hashable], most: int) -> None:
        self.most = most
        self.pending: list[int] = facts.pending.tolist()
        self.crossing: list[list[int]] = facts.crossing.tolist()
        self.growth: list[int] = facts.growth.tolist()
        self.backward: list[int] = facts.backward.tolist()
        self.own: list[int] = facts.own.tolist()
        self.inside: list[int] = facts.inside.tolist()
        self.run_ns = [0, *accumulate(map(int, facts.run_ns))]
        besides = (facts.backward - facts.pending[1:]).tolist()
        rows = list(zip(kinds, besides, self.growth, strict=True))
        number = {row: index for index, row in enumerate(dict.fromkeys(rows))}
        self.rows = tuple(number[row] for row in rows)
        self.steps = tuple(np.diff(facts.pending).tolist())
        self.known: dict[Hashable, list[Way]] = {}
        self.on_the_way: dict[int, list[int]] = {}

    def front(self, start: int, stop: int) -> list[Way]:
        """Return the ways to replay blocks [start, stop), least room last."""
        key = (self.rows[start:stop], self.steps[start + 1 : stop])
        if key not in self.known:
            drafts = [self._whole(start, stop), *self._held(start, stop)]
            for cut in range(start + 1, stop):
                drafts += self._parted(start, cut, stop)
            ways = [draft.way() for draft in _undominated(drafts)]
            self.known[key] = thinned(ways, self.most)
        return self.known[key]

    def _whole(self, start: int, stop: int) -> _Draft:
        saved = room = 0
        base = self.pending[stop]
        for block in range(start, stop):
            asked = saved + self.own[block] + self.backward[block] - base
            room = max(room, saved + self.growth[block], asked)
            saved += self.inside[block]
        return _Draft(self.run_ns[stop] - self.run_ns[start], room)

    def _held(self, start: int, stop: int) -> Iterator[_Draft]:
        """The pass holds the first block, and goes on to a cut after it."""
        if stop - start < 2:
            return
        cut = start + 1
        most = self.backward[start] - self.pending[stop] + self.own[start]
        most = max(most, self.growth[start])
        aside = max(self.inside[start], self.crossing[start][cut])
        time = self.run_ns[cut] - self.run_ns[start]
        for after in self.front(cut, stop):
            if after.cut:
                room = max(most, aside + after.room_bytes)
                yield _Draft(time + after.time_ns, room, 1, True, (None, after))

    def _parted(self, start: int, cut: int, stop: int) -> Iterator[_Draft]:
        """The pass makes what enters the cut."""
        cells = self.crossing[start][cut]
        later = self.pending[cut] - self.pending[stop]
        on_the_way = self._pass_bytes(start)[cut - start - 1]
        time = self.run_ns[cut] - self.run_ns[start]
        before, after = self.front(start, cut), self.front(cut, stop)
        i = j = 0  # most room first on both sides
        while i < len(before) and j < len(after):
            left, right = before[i], after[j]
            earlier_room = left.room_bytes + later
            later_room = right.room_bytes + cells
            room = max(on_the_way, earlier_room, later_room)
            total = time + left.time_ns + right.time_ns
            yield _Draft(total, room, cut - start, False, (left, right))
            if earlier_room < room and later_room < room:
                return  # the pass itself takes the room
            i += earlier_room == room
            j += later_room == room

    def _pass_bytes(self, start: int) -> list[int]:
        """For each cut after `start`: the most that a pass from there to the cut takes."""
        if start not in self.on_the_way:
            steps = map(add, self.growth[start:], self.crossing[start][start:])
            self.on_the_way[start] = list(accumulate(steps, max))
        return self.on_the_way[start]


def _undominated(drafts: list[_Draft]) -> list[_Draft]:
    """The drafts that no other beats, most room first."""
    kept: list[_Draft] = []
    for draft in sorted(drafts, key=itemgetter(0, 1)):
        if not kept or draft.room_bytes < kept[-1].room_bytes:
            kept.append(draft)
    return kept


def thinned(ways: list[Way], most: int) -> list[Way]:
    """Return at most so many of the ways, evenly spread; the last, with the least room, stays."""
    if len(ways) <= most:
        return ways
    step = (len(ways) - 1) / max(1, most - 1)
    return [ways[round(len(ways) - 1 - i * step)] for i in reversed(range(most))]
