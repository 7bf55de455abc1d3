"""The options of every run of blocks: measured once per kind of run, moved to all equal runs.

Called by `planner.search.search`. A run is a few consecutive blocks. Its options are: keep all; the
corners of the min-cut frontier (short runs); drop everything inside, replayed at once or with
nested cuts (long runs too).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.graph.cost import REPLAY_OP_NS
from planner.graph.model import Graph, Ints
from planner.graph.span import IllegalSpanError, Span
from planner.search.chain.blocks import Blocks, op_times_ns
from planner.search.chain.dynamic_program import Chain
from planner.search.chain.effort import effort
from planner.search.chain.facts import Facts
from planner.search.chain.recursion import Recursion, thinned
from planner.search.chain.shape import Shape, Shaper, Window
from planner.search.chain.states import Option, undominated
from planner.search.chain.windows import backward_windows
from planner.search.pins import Wishes
from planner.search.segment.ranges import Range
from planner.search.segment.spans import Cuts, droppable

FRONTIER_OPS = 400
"""Longest run, in ops, whose frontier is searched."""
FRONTIER_BLOCKS = 2
"""And in blocks: both halves of a transformer layer."""
PARTED_BLOCKS = 48
"""Longest run, in blocks, for which all ways to replay it in parts are looked through."""
_FEW_BLOCKS = 12
_MOST_WAYS = 16
"""Ways kept of an interval when there are more than a few blocks; of a few, all are."""


@dataclass(frozen=True, slots=True)
class Template:
    """One option of one run, in the place where it was measured."""

    first: int
    stop: int
    spans: tuple[Span, ...]
    shape: Shape


class Menu:
    """All options of a graph.

    Args:
        graph: the step.
        blocks: its blocks.
        wishes: pins and exclusions.
        op_ns: the time of each op; by default as the profile has it.
        shaper: of another menu of the same graph: what both measure is measured once.
        coarse: look for few points of each frontier.
    """

    def __init__(
        self,
        graph: Graph,
        blocks: Blocks,
        wishes: Wishes,
        op_ns: Ints | None = None,
        shaper: Shaper | None = None,
        coarse: bool = False,
    ) -> None:
        self.coarse = coarse
        self.graph = graph
        self.blocks = blocks
        self.wishes = wishes
        self.edges = blocks.edges
        self.windows = backward_windows(graph, blocks.edges)
        self.effort = effort(blocks)
        self.lengths = self.effort.lengths
        longest = max((self.edges[j] - self.edges[i] for i, j in self._runs()), default=1)
        if shaper is None or shaper.longest < longest:
            shaper = Shaper(graph, Window(self.edges[0], self.edges[-1]), longest)
        self.shaper = shaper
        self.op_ns = op_times_ns(graph) if op_ns is None else op_ns
        self.op_list_ns: list[int] = self.op_ns.tolist()
        self.cost_ns = self.op_ns + REPLAY_OP_NS
        plain = graph.plain_live
        pairs = zip(self.edges, self.edges[1:], strict=False)
        self.forward_top = [int(plain[a:b].max(initial=0)) for a, b in pairs]
        self.backward_top = [int(plain[w.start : w.stop].max(initial=0)) for w in self.windows]
        self.templates: dict[tuple[int, ...], tuple[Template, ...]] = {}
        self.recursion = self._recursion()

    def chain(self) -> Chain:
        """Return the problem across blocks."""
        options = [option for i, j in self._runs() for option in self._options(i, j)]
        backward = self.windows[-1].start if self.windows else self.graph.n_ops
        top = self.graph.plain_live[self.edges[-1] : backward]
        return Chain(len(self.blocks), options, int(top.max(initial=0)))

    def spans(self, option: Option) -> tuple[Span, ...]:
        """Return the spans of an option at its own place."""
        template: Template = option.payload
        shift = self.edges[option.first] - self.edges[template.first]
        return tuple(self._moved(span, shift) for span in template.spans)

    def _runs(self) -> Iterator[tuple[int, int]]:
        count = len(self.blocks)
        for first in range(count):
            for length in self.lengths:
                if first + length <= count:
                    yield first, first + length

    def _options(self, first: int, stop: int) -> Iterator[Option]:
        kinds = self.blocks.kinds[first:stop]
        if kinds not in self.templates:
            found = tuple(self._measured(first, stop))
            if not found and stop - first == 1:  # what pins ask for cannot run: leave it alone
                found = tuple(self._played(first, stop, ()))
            self.templates[kinds] = found
        yield from undominated(self._option(t, first, stop) for t in self.templates[kinds])

    def _option(self, template: Template, first: int, stop: int) -> Option:
        shape, own = template.shape, (template.first, template.stop)
        shift = self.edges[first] - self.edges[template.first]
        forward = shape.forward_bytes - max(self.forward_top[slice(*own)])
        backward = shape.backward_bytes - max(self.backward_top[slice(*own)])
        need = max(
            forward + max(self.forward_top[first:stop]),
            backward + max(self.backward_top[first:stop]),
        )
        replay = sum(int(self.cost_ns[op + shift]) * times for op, times in shape.runs)
        calls = len(self.graph.root_calls)
        cost = replay * calls + shape.tape_ns
        return Option(first, stop, shape.freed_bytes, need, cost, template)

    def _measured(self, first: int, stop: int) -> Iterator[Template]:
        edges = self.edges[first : stop + 1]
        here = Range(
            self.graph, edges, self.wishes, self.blocks.marks, self.op_list_ns, self.coarse
        )
        frontier = stop - first <= FRONTIER_BLOCKS and here.stop - here.start <= FRONTIER_OPS
        made_of_shorter = set(range(1, stop - first)) <= set(self.lengths)
        seen: set[tuple[Span, ...]] = set()
        for spans in here.proposals(frontier, self._ways(first, stop)):
            if spans not in seen and (here.is_joined(spans) or not made_of_shorter):
                seen.add(spans)
                yield from self._played(first, stop, spans)

    def _recursion(self) -> Recursion | None:
        if self.wishes.forced or not self.blocks:
            return None
        stay = self.wishes.saved | self.wishes.excluded
        values = droppable(self.graph, self.edges[0], self.edges[-1], stay)
        facts = Facts.of(self.graph, self.edges, self.windows, values, self.op_ns)
        few = len(self.blocks) <= _FEW_BLOCKS
        return Recursion(facts, self.blocks.kinds, 1_000 if few else _MOST_WAYS)

    def _ways(self, first: int, stop: int) -> list[Cuts]:
        """Where to cut the replay of a run, as far as the recursion finds."""
        if self.recursion is None or stop - first > PARTED_BLOCKS:
            return []
        parted = [way for way in self.recursion.front(first, stop) if way.cut]
        return [
            tuple((self.edges[block], depth) for block, depth in way.cuts(first))
            for way in thinned(parted, self.effort.ways)
        ]

    def _played(self, first: int, stop: int, spans: tuple[Span, ...]) -> Iterator[Template]:
        """The template of some spans; none when the engine could not run them."""
        forward = Window(self.edges[first], self.edges[stop])
        backward = Window(self.windows[stop - 1].start, self.windows[first].stop)
        try:
            yield Template(first, stop, spans, self.shaper.shape(spans, forward, backward))
        except IllegalSpanError:
            return

    def _moved(self, span: Span, shift: int) -> Span:
        if not shift:
            return span
        profile = self.graph.profile
        keep = []
        for value in span.keep:
            maker = profile.values[value].op
            slot = profile.ops[maker].outputs.index(value)
            keep.append(profile.ops[maker + shift].outputs[slot])
        cuts = tuple((position + shift, depth) for position, depth in span.cuts)
        return Span(span.start + shift, span.stop + shift, frozenset(keep), cuts)
