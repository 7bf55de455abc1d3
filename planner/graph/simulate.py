"""The live bytes of a step under a set of spans, played in exact integers.

The plain step's timeline is changed storage by storage: given-up storages die early, held ones
late, replayed ones live again. Replays stand between ops and are played step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.graph.effect import effects_of
from planner.graph.lives import Effect, Moment
from planner.graph.model import Graph, Ints
from planner.graph.span import IllegalSpanError, Span


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a step under a plan takes.

    Attributes:
        peak_bytes: most live bytes at any moment.
        peak_op: op at the peak, or op before which the replay at the peak runs.
        replay_ns: time of replayed ops.
        tape_ns: time that recording adds to forward.
        replayed_ops: number of ops run again.
        kept_bytes: what of the spans' kept values stays in memory.
        timeline: with detail, most live bytes during each op or the replay before it.
        holders: with detail, what is live at the peak, as (category, bytes), largest first;
            `replay` stands for what replays brought back.
    """

    peak_bytes: int
    peak_op: int
    replay_ns: int
    tape_ns: int
    replayed_ops: int
    kept_bytes: int
    timeline: tuple[int, ...] = ()
    holders: tuple[tuple[str, int], ...] = ()

    @property
    def overhead_ns(self) -> int:
        """Time that the plan adds to the step."""
        return self.replay_ns + self.tape_ns


def simulate(
    graph: Graph, spans: Sequence[Span], detail: bool = False, timeline: bool = False
) -> Simulation:
    """Play the step under `spans`.

    Args:
        graph: the step.
        spans: disjoint spans of the first root call, in any order.
        detail: also return the timeline and what is live at the peak.
        timeline: also return the timeline, without what is live at the peak.

    Raises:
        IllegalSpanError: a span stands at an illegal position, overlaps another, keeps a value
            that it does not make, or would replay from a value that is overwritten by then.
    """
    ordered = sorted(spans, key=lambda span: span.start)
    check_spans(graph, ordered)
    player = Player(graph, [e for span in ordered for e in effects_of(graph, span)])
    return player.play(detail, timeline)


def check_spans(graph: Graph, spans: list[Span]) -> None:
    """Check spans in forward order; raises `IllegalSpanError` as `simulate` does."""
    before = 0
    legal = graph.legal
    for span in spans:
        where = f"span [{span.start}, {span.stop})"
        if span.start < before or span.start >= span.stop:
            raise IllegalSpanError(f"{where} is empty, or overlaps one that ends at {before}")
        if not legal.issuperset((span.start, span.stop)):
            raise IllegalSpanError(f"{where} does not stand between module calls")
        for value in span.keep:
            if not graph.made_inside(value, span.start, span.stop):
                raise IllegalSpanError(f"{where} keeps value {value}, which it does not make")
        before = span.stop


class Player:
    """One playing of the step."""

    def __init__(self, graph: Graph, effects: list[Effect]) -> None:
        self.graph = graph
        self.effects = effects
        # Stable: at one position, spans in forward order, and within a span owners first.
        self.moments = sorted((m for e in effects for m in e.moments), key=lambda m: m.at)
        self.changes = [0] * (graph.n_ops + 2)  # of live bytes, from each op on
        self.born: dict[int, int] = {}  # by position, bytes that begin to live there
        self.carried: dict[int, int] = {}  # by position, bytes that end in a replay there
        self.freed: dict[int, list[tuple[int, int]]] = {}  # by moment, (step, bytes)

    def play(self, detail: bool, timeline: bool = False) -> Simulation:
        """Return the result."""
        ends = self._first_lives()
        self.change_first_lives(ends)
        self._add_lives()
        live = self.graph.plain_live + np.cumsum(self.changes[: self.graph.n_ops])
        tops = self.tops_of_replays(live)
        peak_op = int(live.argmax()) if len(live) else 0
        peak = int(live[peak_op]) if len(live) else 0
        in_replay = max(tops, key=lambda op: tops[op], default=0)
        replaying = bool(tops) and tops[in_replay] > peak
        if replaying:
            peak_op, peak = in_replay, tops[in_replay]
        return Simulation(
            peak,
            peak_op,
            sum(e.replay_ns for e in self.effects),
            sum(e.tape_ns for e in self.effects),
            sum(e.replayed_ops for e in self.effects),
            sum(e.kept_bytes for e in self.effects),
            highest_line(live, tops) if detail or timeline else (),
            self._holders(ends, peak_op, peak, replaying) if detail else (),
        )

    def _first_lives(self) -> dict[int, int]:
        """Return the last op of first lives that plans change, before SOURCE HOLD by
        groups that run.
        """
        graph, storages = self.graph, self.graph.profile.storages
        dropped: dict[int, int] = {}
        for effect in self.effects:
            for storage, packs in effect.dropped.items():
                dropped[storage] = dropped.get(storage, 0) + packs
        ends = {s: graph.unsaved_deaths[s] for s, n in dropped.items() if n == graph.packs[s]}
        for effect in self.effects:
            last = effect.stop - 1
            holds = [(storage, last) for storage in effect.closing]
            holds += [(storage, max(last, effect.last_asked)) for storage in effect.unused]
            for storage, last in holds:
                end = ends.get(storage, storages[storage].death)
                ends[storage] = max(end, last)
        return ends

    def change_first_lives(self, ends: dict[int, int]) -> None:
        """Apply SOURCE HOLD to `ends`, then all of them to the timeline."""
        storages = self.graph.profile.storages
        last: dict[int, tuple[int, int]] = {}
        for number, moment in enumerate(self.moments):
            for step, storage in moment.releases:
                last[storage] = max(last.get(storage, (number, step)), (number, step))
        for storage, (number, step) in last.items():
            at = self.moments[number].at
            if ends.get(storage, storages[storage].death) < at:
                ends[storage] = at - 1
                size = storages[storage].bytes
                self.carried[at] = self.carried.get(at, 0) + size
                self.freed.setdefault(number, []).append((step, size))
        for storage, end in ends.items():
            plain = storages[storage]
            self.changes[min(plain.death, self.graph.n_ops) + 1] += plain.bytes
            self.changes[end + 1] -= plain.bytes

    def _add_lives(self) -> None:
        for effect in self.effects:
            for life in effect.lives:
                self.changes[life.birth] += life.bytes
                self.changes[min(life.death, self.graph.n_ops) + 1] -= life.bytes
                self.born[life.birth] = self.born.get(life.birth, 0) + life.bytes
                if life.carry:
                    at = life.death + 1
                    self.carried[at] = self.carried.get(at, 0) + life.bytes

    def tops_of_replays(self, live: Ints) -> dict[int, int]:
        """Return, by position, the most live bytes in the replays there."""
        tops: dict[int, int] = {}
        at, level = -1, 0
        for number, moment in enumerate(self.moments):
            if moment.at != at:
                at = moment.at
                level = int(live[at] - self.graph.births[at])
                level += self.carried.get(at, 0) - self.born.get(at, 0)
                tops[at] = 0
            freed = self.freed.get(number, ())
            tops[at] = max(tops[at], level + _top(moment, freed))
            level += moment.net - sum(size for _, size in freed)
        return tops

    def _holders(
        self, ends: dict[int, int], peak_op: int, peak: int, replaying: bool
    ) -> tuple[tuple[str, int], ...]:
        """Return what is live at the peak, by category."""
        held: dict[str, int] = {}
        last = peak_op - 1 if replaying else peak_op  # a storage born at the op is not there yet
        for storage, plain in enumerate(self.graph.profile.storages):
            if plain.birth <= last and ends.get(storage, plain.death) >= peak_op:
                held[plain.category] = held.get(plain.category, 0) + plain.bytes
        held["replay"] = peak - sum(held.values())
        return tuple(sorted(((k, v) for k, v in held.items() if v), key=lambda kv: (-kv[1], kv[0])))


def _top(moment: Moment, freed: Sequence[tuple[int, int]]) -> int:
    if not freed:
        return moment.top
    highs = moment.highs.copy()
    for step, size in freed:
        highs[step + 1 :] -= size
    return int(highs.max())


def highest_line(live: Ints, tops: dict[int, int]) -> tuple[int, ...]:
    """Return the most live bytes during each op or the replays before it."""
    line: list[int] = live.tolist()
    for op, top in tops.items():
        line[op] = max(line[op], top)
    return tuple(line)
