"""What the replay of each block takes, read off the plain step; for `recursion`.

In the plain step everything saved lives from its block's forward to its backward. Taken off the
timeline, it leaves what is live besides: parameters, gradients so far, the gradient passed down,
temporaries. What a replay brings back goes on top of that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.graph.cost import REPLAY_OP_NS
from planner.graph.model import Graph, Ints
from planner.search.chain.blocks import last_uses, op_times_ns
from planner.search.chain.shape import Window


@dataclass(frozen=True, slots=True)
class Facts:
    """Blocks 0..n-1; sizes in bytes.

    Attributes:
        inside: saved values that block b makes.
        own: those of them that block b itself asks for in backward.
        crossing: `crossing[a, b]` is made by blocks [a, b) and needed from b on; shape (n, n + 1).
        growth: most bytes over what is live before block b while it runs.
        pending: by b, what is live besides when everything from block b on is done; n + 1 of them.
        backward: by b, most bytes live besides while block b's backward runs.
        run_ns: time to run block b again.
    """

    inside: Ints
    own: Ints
    crossing: Ints
    growth: Ints
    pending: Ints
    backward: Ints
    run_ns: Ints

    @staticmethod
    def of(
        graph: Graph,
        edges: Sequence[int],
        windows: Sequence[Window],
        droppable: frozenset[int],
        op_ns: Ints | None = None,
    ) -> Facts:
        """Read the facts of the blocks between `edges`, whose backward runs in `windows`.

        Args:
            graph: the step.
            edges: n + 1 positions.
            windows: ops of the backward of each block.
            droppable: values that can be dropped.
            op_ns: the time of each op; by default as the profile has it.
        """
        times = op_times_ns(graph) if op_ns is None else op_ns
        return _Reader(graph, edges, windows, droppable).facts(times)


class _Reader:
    def __init__(
        self,
        graph: Graph,
        edges: Sequence[int],
        windows: Sequence[Window],
        droppable: frozenset[int],
    ) -> None:
        self.graph, self.edges, self.windows = graph, edges, windows
        self.n = len(edges) - 1
        self.outside = sum(s.bytes for s in graph.profile.storages if s.birth < 0)
        self.values: dict[int, list[int]] = {}  # by storage
        for value in droppable:
            self.values.setdefault(graph.storage_of(value), []).append(value)
        changes = np.zeros(graph.n_ops + 2, dtype=np.int64)
        for storage in self.values:
            life = graph.profile.storages[storage]
            changes[life.birth] -= life.bytes
            changes[min(life.death, graph.n_ops) + 1] += life.bytes
        self.besides = graph.plain_live + changes.cumsum()[: graph.n_ops]

    def facts(self, op_ns: Ints) -> Facts:
        inside, own, shared = (np.zeros(self.n + 1, dtype=np.int64) for _ in range(3))
        crossing = np.zeros((self.n, self.n + 1), dtype=np.int64)
        for storage, last in last_uses(self.graph).items():
            life = self.graph.profile.storages[storage]
            if life.category == "activation" and self.edges[0] <= life.birth < self.edges[-1]:
                block, stop = self._block(life.birth), self._block(last) + 1
                crossing[block, block + 1 : stop] += life.bytes
                if storage in self.values:
                    mine = self._is_own(storage, block)
                    inside[block] += life.bytes
                    own[block] += life.bytes * mine
                    shared[block + 1] += life.bytes * (mine and stop > block + 1)
        pairs = list(zip(self.edges, self.edges[1:], strict=False))
        run_ns = [int((op_ns[slice(*pair)] + REPLAY_OP_NS).sum()) for pair in pairs]
        return Facts(
            inside[:-1],
            own[:-1],
            crossing[::-1].cumsum(axis=0)[::-1],
            np.array([self._growth(*pair) for pair in pairs], dtype=np.int64),
            np.array([0, *map(self._before, self.windows)], dtype=np.int64) + shared,
            np.array([self.besides[w.start : w.stop].max(initial=0) for w in self.windows]),
            np.array(run_ns, dtype=np.int64),
        )

    def _block(self, position: int) -> int:
        return min(bisect_right(self.edges, position), self.n) - 1

    def _is_own(self, storage: int, block: int) -> bool:
        """Return whether a block packs a value of a storage itself."""
        ends = self.edges[block : block + 2]
        return any(self.graph.packed_inside(value, *ends) for value in self.values[storage])

    def _growth(self, start: int, stop: int) -> int:
        live, before = self.graph.plain_live, self.outside
        if start:
            before = int(live[start] - self.graph.births[start])
        return int(live[start:stop].max()) - before

    def _before(self, window: Window) -> int:
        """Bytes live besides when a window begins."""
        at = min(window.start, self.graph.n_ops - 1)
        return int(self.besides[at] - self.graph.births[at])
