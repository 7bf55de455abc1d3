"""What one option does to memory, in the few numbers that the dynamic program needs.

The simulator's account of each span (`planner.graph.effect`) is read over the windows of forward
and backward in which the option's own blocks run. Elsewhere an option is a constant: nothing
before its forward and after its backward, and its freed bytes in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.graph.effect import Effect, effects_of
from planner.graph.model import Graph
from planner.graph.span import Span

Ints = npt.NDArray[np.int64]
_DIGIT = 24  # bits of a tally; no op runs again 2**24 times in one step


@dataclass(frozen=True, slots=True)
class Window:
    """Ops [start, stop)."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of one option.

    Attributes:
        freed_bytes: bytes gone between its forward and its backward.
        forward_bytes: most live bytes in its forward window.
        backward_bytes: most live bytes in its backward window, replays included.
        runs: (op, times) for every op that runs again.
        tape_ns: time that recording adds to one forward.
    """

    freed_bytes: int
    forward_bytes: int
    backward_bytes: int
    runs: tuple[tuple[int, int], ...]
    tape_ns: int


class Shaper:
    """Measures options of one graph.

    Op times do not change what spans do to memory, so the shaper plays a copy of the graph whose
    op times are powers of one base: the total replay time then spells, digit by digit, how often
    each op runs again.
    """

    def __init__(self, graph: Graph, longest: int) -> None:
        self.graph = graph
        self.longest = max(1, longest)
        ops = tuple(
            replace(op, time_ns=1 << (_DIGIT * (index % self.longest)))
            for index, op in enumerate(graph.profile.ops[: graph.forward_stop])
        )
        rest = graph.profile.ops[graph.forward_stop :]
        self.tally = Graph.of(replace(graph.profile, ops=ops + rest))

    def shape(self, spans: Sequence[Span], forward: Window, backward: Window) -> Shape:
        """Measure an option.

        Args:
            spans: its spans, of at most `longest` ops in all.
            forward: the ops of its own blocks.
            backward: the ops during which those blocks' backward runs.
        """
        effects = [effects_of(self.tally, span)[0] for span in spans]
        account = _Account(self.graph, effects)
        return Shape(
            -account.change_before(backward.start),
            account.highest(forward),
            max(account.highest(backward), account.replays()),
            tuple(run for effect in effects for run in self._runs(effect)),
            sum(effect.tape_ns for effect in effects),
        )

    def _runs(self, effect: Effect) -> list[tuple[int, int]]:
        # Each replayed op also counts a constant; remove it to leave the digits alone.
        digits = effect.replay_ns - _overhead_ns(effect.replayed_ops)
        mask = (1 << _DIGIT) - 1
        found = []
        for index in range(effect.start, effect.stop):
            times = (digits >> (_DIGIT * (index % self.longest))) & mask
            if times:
                found.append((index, times))
        return found


def _overhead_ns(ops: int) -> int:
    from planner.graph.cost import replay_cost_ns

    return replay_cost_ns(0, ops)


class _Account:
    """Changes of live bytes over time, as the simulator makes them for one option alone."""

    def __init__(self, graph: Graph, effects: Sequence[Effect]) -> None:
        self.graph = graph
        self.moments = sorted((m for e in effects for m in e.moments), key=lambda m: m.at)
        self.events: list[tuple[int, int]] = []
        self.born: dict[int, int] = {}
        self.carried: dict[int, int] = {}
        self.let_go: dict[int, list[tuple[int, int]]] = {}
        self._lives(effects)
        self._ends(effects)
        self.events.sort()
        self.at = np.array([p for p, _ in self.events], dtype=np.int64)
        self.sums = np.cumsum([0, *(size for _, size in self.events)])

    def change_before(self, op: int) -> int:
        """Change of live bytes just before an op."""
        return int(self.sums[np.searchsorted(self.at, op - 1, side="right")])

    def highest(self, window: Window) -> int:
        """Most live bytes during the ops of a window."""
        ops = np.arange(window.start, window.stop)
        if not ops.size:
            return 0
        change = self.sums[np.searchsorted(self.at, ops, side="right")]
        return int((self.graph.plain_live[window.start : window.stop] + change).max())

    def replays(self) -> int:
        """Most live bytes in the replays."""
        most, at, level = 0, -1, 0
        for number, moment in enumerate(self.moments):
            if moment.at != at:
                at = moment.at
                level = int(self.graph.plain_live[at]) + self.change_before(at + 1)
                level -= int(self.graph.births[at]) + self.born.get(at, 0)
                level += self.carried.get(at, 0)
            let_go = self.let_go.get(number, [])
            highs = moment.highs.copy()
            for step, size in let_go:
                highs[step + 1 :] -= size
            most = max(most, level + int(highs.max(initial=0)))
            level += moment.net - sum(size for _, size in let_go)
        return most

    def _lives(self, effects: Sequence[Effect]) -> None:
        for life in (life for effect in effects for life in effect.lives):
            self.events += [(life.birth, life.bytes), (life.death + 1, -life.bytes)]
            self.born[life.birth] = self.born.get(life.birth, 0) + life.bytes
            if life.carry:
                at = life.death + 1
                self.carried[at] = self.carried.get(at, 0) + life.bytes

    def _ends(self, effects: Sequence[Effect]) -> None:
        """When first lives end: given up, under CLOSING HOLD, under SOURCE HOLD."""
        graph, storages = self.graph, self.graph.profile.storages
        ends = {
            storage: graph.unsaved_deaths[storage]
            for effect in effects
            for storage, packs in effect.dropped.items()
            if packs == graph.packs[storage]
        }
        for effect in effects:
            for storage in effect.closing:
                end = ends.get(storage, storages[storage].death)
                ends[storage] = max(end, effect.stop - 1)
            ends |= dict.fromkeys(effect.forever, graph.n_ops)
        self._hold_sources(ends)
        for storage, end in ends.items():
            plain = storages[storage]
            self.events += [(plain.death + 1, plain.bytes), (end + 1, -plain.bytes)]

    def _hold_sources(self, ends: dict[int, int]) -> None:
        last: dict[int, tuple[int, int]] = {}
        for number, moment in enumerate(self.moments):
            for step, storage in moment.releases:
                last[storage] = max(last.get(storage, (number, step)), (number, step))
        for storage, (number, step) in last.items():
            at, size = self.moments[number].at, self.graph.profile.storages[storage].bytes
            if ends.get(storage, self.graph.profile.storages[storage].death) < at:
                ends[storage] = at - 1
                self.carried[at] = self.carried.get(at, 0) + size
                self.let_go.setdefault(number, []).append((step, size))
