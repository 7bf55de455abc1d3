"""When each block's backward runs; for `menu` and `facts`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.graph.model import Graph
from planner.search.chain.shape import Window


def backward_windows(graph: Graph, edges: Sequence[int]) -> list[Window]:
    """Return, for each block, the ops from its first unpack to that of the block before it."""
    count = len(edges) - 1
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
