"""What one span does to memory and time, apart from all other spans. Cached by the graph.

`planner.graph.simulate` adds these up. The rules, each named where it is applied:

CLOSING HOLD. A tape holds kept values, and every value from outside that its replayable ops
read, until the span closes.
SOURCE HOLD. A group's sources stay until its program has used them; if it never runs, as long as
autograd asks for anything that the span gave up.
CELL HOLD. What a group delivers to other groups stays until the last of them has used it.
COPY ON WRITE. A source from outside that an op of the span overwrites is copied before that op;
the copy is then what is held.
WRITTEN OUTSIDE. A version that the span writes into storage from outside is never given up, and
serves as a source like any value from outside.
OVERWRITTEN KEEP. A kept value that the span itself overwrites is no source: it is made again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.graph.cost import replay_cost_ns, tape_cost_ns
from planner.graph.draws import draws_of
from planner.graph.lives import Effect, Life, Moment
from planner.graph.model import NO_FLOW, Graph
from planner.graph.play import play_group
from planner.graph.span import IllegalSpanError, Span
from planner.replay.held_states import STATE_BYTES
from planner.replay.slicing import Slices, slice_segment


def effects_of(graph: Graph, span: Span) -> tuple[Effect, ...]:
    """Return the effects of a span's instances, one for each root call that has it.

    Raises:
        IllegalSpanError: the engine could not run it.
    """
    effects = graph.remembered(span)
    if effects is None:
        instances = (graph.places.instance(span, call) for call in graph.root_calls)
        effects = tuple(_Deriver(graph, span).effect() for span in instances if span is not None)
        graph.remember(span, effects)
    return effects


class _Deriver:
    """Derives the effect of one instance."""

    def __init__(self, graph: Graph, span: Span) -> None:
        self.graph = graph
        self.span = span
        self.never = graph.n_ops
        self.ops = [graph.flow(index) for index in range(span.start, span.stop)]
        self.result = Effect(span.start, span.stop)
        self.last_packs: dict[int, int] = {}  # by dropped value, as an op of the span
        self.needed = self._drop()  # dropped value -> position of its first use
        cuts = [(position - span.start, depth) for position, depth in span.cuts]
        self.slices: Slices[int] = slice_segment(
            self.ops, self.needed, self._held(), cuts, self.last_packs
        )
        self.schedule = self._schedule()
        workspaces = graph.workspaces[span.start : span.stop]
        random = graph.random_inside(span.start, span.stop)
        counted = graph.profile.step.device == "cpu"
        self.draws = draws_of(random, self.slices.groups, counted)
        self.played = [
            play_group(group, self.ops, graph.storage_bytes, workspaces, draws)
            for group, draws in zip(self.slices.groups, self.draws.groups, strict=True)
        ]
        self.freed: list[list[tuple[int, int]]] = [[] for _ in self.played]  # (step, bytes)
        self.running = [entry for entry in self.schedule if entry[0] < self.never]
        self.last_uses = self._last_uses()

    def effect(self) -> Effect:
        """Return the effect."""
        for position, number in self.running:
            for value in self.slices.groups[number].makes:
                self._live_again(value, position)
        self._hold_sources()
        self._hold_states()
        self._hold_closing()
        self.result.moments = [self._moment(*entry) for entry in self.running]
        self._count()
        return self.result

    def _made(self) -> Iterator[int]:
        for op in self.ops:
            yield from op.makes
            yield from (new for _, new in op.writes)

    def _external(self, value: int) -> bool:
        return not self.graph.made_inside(value, self.span.start, self.span.stop)

    def _overwritten(self, value: int) -> bool:
        return self.span.start <= self.graph.overwritten_at(value) < self.span.stop

    def _held(self) -> frozenset[int]:
        """Values that the slicing finds in place: OVERWRITTEN KEEP, WRITTEN OUTSIDE."""
        kept = (value for value in self.span.keep if not self._overwritten(value))
        outside = (value for value in self._made() if self._external(value))
        return frozenset((*kept, *outside))

    def _drop(self) -> dict[int, int]:
        """Find the dropped values: saved and made inside, replayable, not kept."""
        needed: dict[int, int] = {}
        saved: set[int] = set()
        dropped = self.result.dropped
        for value in self._made():
            packs = self.graph.packed_inside(value, self.span.start, self.span.stop)
            if not packs:
                continue
            storage = self.graph.storage_of(value)
            saved.add(storage)
            if value not in self.span.keep and not self._external(value):
                positions = [p.unpacked_at for p in packs if p.unpacked_at >= 0]
                needed[value] = min(positions, default=self.never)
                self.last_packs[value] = max(p.packed_at for p in packs) - self.span.start
                dropped[storage] = dropped.get(storage, 0) + len(packs)
        self.result.saved_bytes = self._total(saved)
        storages = self.graph.profile.storages
        self.result.last_asked = max((storages[s].death for s in dropped), default=-1)
        return needed

    def _total(self, storages: set[int]) -> int:
        return sum(self.graph.profile.storages[s].bytes for s in storages)

    def _schedule(self) -> list[tuple[int, int]]:
        """Return (position, group) in the order in which groups run.

        A group runs at the first use of what it delivers, right after the groups that deliver
        to it. Groups that never run stand at the end, at position `never`.
        """
        groups, owner = self.slices.groups, self.slices.owner
        first = [min(self.needed.get(v, self.never) for v in g.makes) for g in groups]
        schedule: dict[int, int] = {}

        def run(number: int, position: int) -> None:
            if number not in schedule:
                for cell in groups[number].cells:
                    run(owner[cell], position)
                schedule[number] = position

        for number in sorted(range(len(groups)), key=lambda n: (first[n], n)):
            run(number, first[number])
        return [(position, number) for number, position in schedule.items()]

    def _last_uses(self) -> dict[int, tuple[int, int, int]]:
        """Return, by source or cell, the last (position, group, step) that reads it."""
        return {
            value: (position, number, step)
            for position, number in self.schedule
            for value, step in self.played[number].used.items()
        }

    def _live_again(self, value: int, birth: int) -> None:
        """Let a delivered value live: to its plain death, or longer under CELL HOLD."""
        death = -1
        if value in self.needed:
            death = self.graph.profile.storages[self.graph.storage_of(value)].death
        use = self.last_uses.get(value)
        if use is not None and use[0] > death:
            self._live_until(self.graph.storage_bytes(value), birth, use)
        elif death >= birth:
            size = self.graph.storage_bytes(value)
            self.result.lives.append(Life(birth, death, size))
        else:  # no unpack and no replay reads it any more
            number = self.slices.owner[value]
            self._free(value, number, len(self.played[number].highs) - 1)

    def _live_until(self, size: int, birth: int, use: tuple[int, int, int]) -> None:
        """Let bytes live from `birth` until a step of a replay lets go of them."""
        time, number, step = use
        if time == self.never:
            death = max(self.result.last_asked, self.span.stop - 1)
            self.result.lives.append(Life(birth, death, size))
            return
        if time > birth:
            self.result.lives.append(Life(birth, time - 1, size, carry=True))
        self.freed[number].append((step, size))

    def _free(self, value: int, number: int, step: int) -> None:
        self.freed[number].append((step, self.graph.storage_bytes(value)))

    def _hold_sources(self) -> None:
        unused = []
        for value in self.slices.sources:
            time = self.last_uses[value][0]
            writer = self.graph.overwritten_at(value)
            if self._copied(value):
                self._live_until(self.graph.storage_bytes(value), writer, self.last_uses[value])
            elif 0 <= writer < time < self.never:
                raise IllegalSpanError(
                    f"span [{self.span.start}, {self.span.stop}) replays at {time} from value"
                    f" {value}, which op {writer} has overwritten"
                )
            elif time == self.never:
                unused.append(self.graph.storage_of(value))
        self.result.unused = tuple(dict.fromkeys(unused))

    def _hold_states(self) -> None:
        """GENERATOR STATE (see `planner.graph.draws`)."""
        start, stop = self.span.start, self.span.stop
        for op in self.draws.looked_at:
            over = STATE_BYTES - self.graph.workspaces[start + op]
            if over > 0:
                self.result.lives.append(Life(start + op, start + op, over))
        last = {number: place for place, (_, number) in enumerate(self.schedule)}
        for users in self.draws.held.values():
            time, number = self.schedule[max(last[user] for user in users)]
            use = (time, number, len(self.played[number].highs) - 1)
            self._live_until(STATE_BYTES, min(stop, time - 1), use)

    def _hold_closing(self) -> None:
        graph, stop = self.graph, self.span.stop
        read = (value for op in self.ops for value in op.reads if self._external(value))
        storages = (graph.storage_of(value) for value in (*read, *sorted(self.span.keep)))
        self.result.closing = tuple(
            dict.fromkeys(s for s in storages if graph.unsaved_deaths[s] < stop - 1)
        )

    def _moment(self, time: int, number: int) -> Moment:
        played = self.played[number]
        highs, net = np.array(played.highs, dtype=np.int64), played.net
        for step, size in self.freed[number]:
            highs[step + 1 :] -= size
            net -= size
        releases = tuple(
            (played.used[value], self.graph.storage_of(value))
            for value in self.slices.groups[number].sources
            if not self._copied(value)
        )
        return Moment(time, highs, int(highs.max()), net, releases)

    def _copied(self, value: int) -> bool:
        """Tell whether COPY ON WRITE applies to a source."""
        return (
            self._overwritten(value)
            and self._external(value)
            and self.graph.flow(self.graph.overwritten_at(value)) is not NO_FLOW
        )

    def _count(self) -> None:
        ops = self.graph.profile.ops
        kernels_ns, replayed = 0, 0
        sources = frozenset(self.slices.sources)
        for _, number in self.running:
            steps = self.slices.groups[number].steps
            replayed += len(steps)
            kernels_ns += sum(ops[self.span.start + step.op].time_ns for step in steps)
        self.result.replayed_ops = replayed
        self.result.replay_ns = replay_cost_ns(kernels_ns, replayed)
        self.result.tape_ns = tape_cost_ns(self.span.stop - self.span.start)
        self.result.kept_bytes = self._total(
            {
                self.graph.storage_of(value)
                for value in self.span.keep
                if value in sources
                or self.graph.packed_inside(value, self.span.start, self.span.stop)
            }
        )
