"""What people place by hand: checkpoints on every block, on equal groups of blocks, on sqrt(n).

Compared with, and candidates like any other where they do better. Each gives up everything inside a
group of blocks and keeps what crosses between groups, which is what `torch.utils.checkpoint` around
a block does. Sources: Chen, Xu, Zhang and Guestrin 2016, "Training deep nets with sublinear memory
cost", for the square root.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from planner.errors import UnknownUnitError
from planner.graph.model import Graph
from planner.graph.simulate import simulate
from planner.graph.span import Span
from planner.search.chain.blocks import Blocks, split
from planner.search.segment.spans import droppable, saved_inside

MOST_SETTINGS = 16
"""Settings tried of each placement."""
_NUMBER = re.compile(r"\d+")


def every_block(graph: Graph, unit_names: Sequence[str]) -> tuple[Span, ...]:
    """Return one span around every call of the named units in the first root call.

    Raises:
        UnknownUnitError: a name is no unit of the first root call.
    """
    units = [u for u in graph.profile.units if u.root_call == 0]
    known = {u.name for u in units}
    for name in unit_names:
        if name not in known:
            raise UnknownUnitError(name=name)
    named = set(unit_names)
    ranges = sorted((u.enter, u.exit) for u in units if u.name in named and u.enter < u.exit)
    return tuple(span for low, high in ranges for span in _whole(graph, low, high))


def uniform(graph: Graph, k: int, blocks: Blocks | None = None) -> tuple[Span, ...]:
    """Return `k` spans over equal numbers of blocks, by default the search's own."""
    blocks = blocks or split(graph)
    count = len(blocks)
    if count < 1 or k < 1:
        return ()
    k = min(k, count)
    marks = [blocks.edges[count * part // k] for part in range(k + 1)]
    return tuple(
        span
        for low, high in zip(marks, marks[1:], strict=False)
        for span in _whole(graph, low, high)
    )


def sqrt(graph: Graph, blocks: Blocks | None = None) -> tuple[Span, ...]:
    """Return as many spans as the square root of the number of blocks."""
    blocks = blocks or split(graph)
    return uniform(graph, max(1, math.isqrt(len(blocks))), blocks)


def _whole(graph: Graph, low: int, high: int) -> tuple[Span, ...]:
    """One span over all of [low, high), if it gives up anything."""
    dropped = droppable(graph, low, high)
    if not dropped:
        return ()
    return (Span(low, high, saved_inside(graph, low, high) - dropped),)


def layers(graph: Graph) -> tuple[str, ...]:
    """Return the units that people put checkpoints on: outermost numbered calls with siblings.

    `transformer.h.0`, `transformer.h.1`, ...; several stacks (encoder and decoder) count together.
    """
    units = [u for u in graph.profile.units if u.root_call == 0 and u.enter < u.exit]
    stacks: dict[str, list[str]] = {}
    for name in dict.fromkeys(u.name for u in units):
        parts = name.split(".")
        if _NUMBER.fullmatch(parts[-1]) and not any(map(_NUMBER.fullmatch, parts[:-1])):
            stacks.setdefault(".".join(parts[:-1]), []).append(name)
    return tuple(name for stack in stacks.values() if len(stack) > 1 for name in stack)


def placements(
    graph: Graph, blocks: Blocks | None = None
) -> Iterator[tuple[str, str, Callable[[], tuple[Span, ...]]]]:
    """Yield every placement by hand: its name, its setting, and what makes its spans.

    Args:
        graph: the step.
        blocks: what uniform segments are made of; by default the search's own.
    """
    blocks = blocks or split(graph)
    yield "plain", "", tuple
    names = layers(graph)
    whole = every_block(graph, names)
    if whole:
        yield "every block", f"{len(whole)} blocks", lambda: whole
    for k in _settings(1, len(whole) - 1):
        yield "best k of n", f"k={k} of {len(whole)}", partial(_best_of, graph, whole, k)
    for k in _settings(2, len(blocks)):
        yield "uniform segments", f"{k} segments", partial(uniform, graph, k, blocks)
    if len(blocks) > 1:
        yield "sqrt", f"of {len(blocks)} blocks", partial(sqrt, graph, blocks)


def _settings(first: int, last: int) -> list[int]:
    step = 1 + max(0, last - first) // MOST_SETTINGS
    return list(range(first, last + 1, step))


def _best_of(graph: Graph, whole: tuple[Span, ...], k: int) -> tuple[Span, ...]:
    """The first k, the last k or k evenly spread: whichever has the lowest peak."""
    count = len(whole)
    spread = tuple(whole[(2 * i + 1) * count // (2 * k)] for i in range(k))
    return min((whole[:k], whole[-k:], spread), key=lambda spans: simulate(graph, spans).peak_bytes)
