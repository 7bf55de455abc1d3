"""What one option does to memory, in the few numbers that the dynamic program needs.

The simulator plays each option alone; its timeline is read over the windows of forward and
backward in which the option's own blocks run. Elsewhere an option is a constant: nothing before
its forward and after its backward, and its freed bytes in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.graph.cost import replay_cost_ns
from planner.graph.model import Graph
from planner.graph.simulate import simulate
from planner.graph.span import Span

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
        runs: (op, times) for every op of the first root call that runs again.
        tape_ns: time that recording adds, all root calls together.
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

    Args:
        graph: the step.
        first_call: ops of the first root call.
        longest: most ops that the spans of one option stretch over.
    """

    def __init__(self, graph: Graph, first_call: Window, longest: int) -> None:
        self.longest = max(1, longest)
        ops = [replace(op, time_ns=0) for op in graph.profile.ops]
        for index in range(first_call.start, first_call.stop):
            digit = 1 << (_DIGIT * (index % self.longest))
            ops[index] = replace(ops[index], time_ns=digit)
        self.known: dict[tuple[tuple[Span, ...], Window, Window], Shape] = {}
        self.tally = Graph(replace(graph.profile, ops=tuple(ops)))

    def shape(self, spans: tuple[Span, ...], forward: Window, backward: Window) -> Shape:
        """Measure an option, once.

        Args:
            spans: its spans.
            forward: the ops of its own blocks.
            backward: the ops during which those blocks' backward runs.

        Raises:
            IllegalSpanError: the engine could not run it.
        """
        key = (spans, forward, backward)
        if key not in self.known:
            self.known[key] = self._measured(*key)
        return self.known[key]

    def _measured(self, spans: tuple[Span, ...], forward: Window, backward: Window) -> Shape:
        played = simulate(self.tally, spans, timeline=True)
        timeline = np.array(played.timeline, dtype=np.int64)
        before = backward.start - 1
        return Shape(
            int(self.tally.plain_live[before] - timeline[before]),
            int(timeline[forward.start : forward.stop].max(initial=0)),
            int(timeline[backward.start : backward.stop].max(initial=0)),
            self._runs(played.replay_ns - replay_cost_ns(0, played.replayed_ops), forward),
            played.tape_ns,
        )

    def _runs(self, digits: int, ops: Window) -> tuple[tuple[int, int], ...]:
        mask = (1 << _DIGIT) - 1
        times = (
            (index, (digits >> (_DIGIT * (index % self.longest))) & mask)
            for index in range(ops.start, ops.stop)
        )
        return tuple(run for run in times if run[1])
