"""The options of every run of blocks: measured once per kind of run, moved to all equal runs.

Called by `planner.search.search`. A run is a few consecutive blocks. Its options are: keep all; the
corners of the min-cut frontier (short runs); give up everything inside, replayed at once or with
nested cuts (long runs too).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.graph.cost import REPLAY_OP_NS
from planner.graph.model import Graph
from planner.graph.span import IllegalSpanError, Span
from planner.search.blocks import Blocks
from planner.search.chain import Chain
from planner.search.pins import Wishes
from planner.search.ranges import MOST_LEVELS, Range
from planner.search.shape import Shape, Shaper, Window
from planner.search.states import Option, undominated

FRONTIER_OPS = 400
"""Longest run, in ops, whose frontier is searched."""
FRONTIER_BLOCKS = 2
"""And in blocks: both halves of a transformer layer."""
WORK_OPS = 20_000
WORK_PASSES = 12
"""Ops played in all while options are measured: so many, about half a second, and so many times
the ops of one forward. They decide how many run lengths there are."""
_RUN_OPS = 20  # what measuring a run costs besides its ops
_DENSITIES = ((24, 1.15), (16, 1.2), (8, 1.25), (6, 1.4), (4, 1.5), (4, 2.0), (2, 2.0), (2, 3.0))
"""All lengths up to the first number, then growing by the second."""


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
    """

    def __init__(self, graph: Graph, blocks: Blocks, wishes: Wishes) -> None:
        self.graph = graph
        self.blocks = blocks
        self.wishes = wishes
        self.edges = blocks.edges
        self.windows = _backward_windows(graph, blocks)
        self.lengths = _lengths(blocks)
        longest = max((self.edges[j] - self.edges[i] for i, j in self._runs()), default=1)
        self.shaper = Shaper(graph, Window(self.edges[0], self.edges[-1]), longest)
        self.cost_ns = np.array(
            [op.time_ns + REPLAY_OP_NS for op in graph.profile.ops], dtype=np.int64
        )
        plain = graph.plain_live
        pairs = zip(self.edges, self.edges[1:], strict=False)
        self.forward_top = [int(plain[a:b].max(initial=0)) for a, b in pairs]
        self.backward_top = [int(plain[w.start : w.stop].max(initial=0)) for w in self.windows]
        self.templates: dict[tuple[int, ...], tuple[Template, ...]] = {}

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
        here = Range(self.graph, edges, self.wishes, self.blocks.marks)
        frontier = stop - first <= FRONTIER_BLOCKS and here.stop - here.start <= FRONTIER_OPS
        made_of_shorter = set(range(1, stop - first)) <= set(self.lengths)
        seen: set[tuple[Span, ...]] = set()
        for spans in here.proposals(frontier):
            if spans not in seen and (here.is_joined(spans) or not made_of_shorter):
                seen.add(spans)
                yield from self._played(first, stop, spans)

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


def _backward_windows(graph: Graph, blocks: Blocks) -> list[Window]:
    """For each block, the ops from its first unpack to that of the block before it."""
    edges, count = blocks.edges, len(blocks)
    raw = [graph.n_ops] * count
    for tensor in graph.profile.saved:
        block = int(np.searchsorted(edges, tensor.packed_at, side="right")) - 1
        if tensor.unpacked_at >= 0 and 0 <= block < count:
            raw[block] = min(raw[block], tensor.unpacked_at)
    end = _first_call_ends(graph, max((r for r in raw if r < graph.n_ops), default=0))
    starts = [end] * count
    later = 0
    for block in reversed(range(count)):
        if raw[block] < graph.n_ops:
            starts[block] = later = min(end, max(later, raw[block]))
    for block in range(1, count):
        if raw[block] == graph.n_ops:
            starts[block] = starts[block - 1]
    return [Window(a, b) for a, b in zip(starts, [end, *starts], strict=False)]


def _first_call_ends(graph: Graph, last_unpack: int) -> int:
    """Where the next root call begins after the first one's backward, or the end of the step."""
    units = graph.profile.units
    return min(
        (u.enter for u in units if u.root_call > 0 and u.parent < 0 and u.enter > last_unpack),
        default=graph.n_ops,
    )


def _lengths(blocks: Blocks) -> list[int]:
    """Run lengths in blocks: all up to 8, then growing by a factor that keeps the work in hand."""
    count = len(blocks)
    most = WORK_OPS + WORK_PASSES * (blocks.edges[-1] - blocks.edges[0] if count else 0)
    lengths: list[int] = []
    for dense, growth in _DENSITIES:
        lengths, size = list(range(1, dense + 1)), float(dense)
        while size * growth <= count:
            size = max(size + 1, size * growth)
            lengths.append(int(size))
        lengths = sorted({n for n in lengths if n <= count})
        if _work(blocks, lengths) <= most:
            break
    return lengths


def _work(blocks: Blocks, lengths: list[int]) -> int:
    """Ops played when every kind of run is measured with every depth of cuts."""
    edges, kinds = blocks.edges, blocks.kinds
    sizes: dict[tuple[int, ...], int] = {}
    for length in lengths:
        passes = 1 + sum(2**levels <= length for levels in range(1, MOST_LEVELS + 1))
        for first in range(len(kinds) - length + 1):
            ops = edges[first + length] - edges[first] + _RUN_OPS
            sizes[kinds[first : first + length]] = ops * passes
    return sum(sizes.values())
