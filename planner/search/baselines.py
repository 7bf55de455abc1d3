"""What people place by hand: checkpoints on every block, on equal groups of blocks, on sqrt(n).

For comparison only. Each gives up everything inside a group of blocks and keeps what crosses
between groups, which is what `torch.utils.checkpoint` around a block does. Sources: Chen, Xu, Zhang
and Guestrin 2016, "Training deep nets with sublinear memory cost", for the square root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.errors import UnknownUnitError
from planner.graph.model import Graph
from planner.graph.span import Span
from planner.search.blocks import split
from planner.search.spans import droppable, saved_inside


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
    wanted = set(unit_names)
    ranges = sorted((u.enter, u.exit) for u in units if u.name in wanted and u.enter < u.exit)
    return tuple(span for low, high in ranges for span in _whole(graph, low, high))


def uniform(graph: Graph, k: int) -> tuple[Span, ...]:
    """Return `k` spans over equal numbers of blocks; the blocks are the search's own."""
    edges = split(graph).edges
    blocks = len(edges) - 1
    if blocks < 1 or k < 1:
        return ()
    k = min(k, blocks)
    marks = [edges[blocks * part // k] for part in range(k + 1)]
    return tuple(
        span
        for low, high in zip(marks, marks[1:], strict=False)
        for span in _whole(graph, low, high)
    )


def sqrt(graph: Graph) -> tuple[Span, ...]:
    """Return as many spans as the square root of the number of blocks."""
    blocks = len(split(graph).edges) - 1
    return uniform(graph, max(1, math.isqrt(max(0, blocks))))


def _whole(graph: Graph, low: int, high: int) -> tuple[Span, ...]:
    """One span over all of [low, high), if it gives up anything."""
    dropped = droppable(graph, low, high)
    if not dropped:
        return ()
    return (Span(low, high, saved_inside(graph, low, high) - dropped),)
