"""Lower bounds on the time that the blocks still to come must add, for pruning and for the gap.

Method: Lagrangian relaxation. For a price per byte, the cheapest way through the blocks from b on
of time - price * freed bytes is a shortest path, whatever fits; whoever must still free R bytes
pays at least that path plus price * R. The best of several prices is used (Geoffrion 1974,
"Lagrangean relaxation for integer programming").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.search.chain.states import Batch, Ints

Floats = npt.NDArray[np.float64]
_SAFETY = 1 - 1e-9  # floats may round a bound up


@dataclass(frozen=True, slots=True)
class Bound:
    """Bounds for one total of bytes to free: `paths[b, k]` is block b's path at `prices[k]`."""

    prices: Floats
    paths: Floats
    missing_bytes: int

    def remaining(self, block: int, freed: Ints) -> Floats:
        """Return, for each amount freed before `block`, a bound on the time still to add."""
        left = np.maximum(0, self.missing_bytes - freed).astype(np.float64)
        bounds = self.paths[block][:, None] + self.prices[:, None] * left[None, :]
        best: Floats = np.maximum(0.0, bounds.max(axis=0)) * _SAFETY
        return best


class SuffixBounds:
    """Shortest paths for many prices.

    Args:
        n_blocks: number of blocks.
        batches: all options.
    """

    def __init__(self, n_blocks: int, batches: Sequence[Batch]) -> None:
        self.n_blocks = n_blocks
        self.leaving: list[list[Batch]] = [[] for _ in range(n_blocks + 1)]
        for batch in batches:
            self.leaving[batch.first].append(batch)
        ratios = [
            float(r)
            for batch in batches
            for r in batch.cost[batch.freed > 0] / batch.freed[batch.freed > 0]
            if r > 0
        ]
        low, high = (min(ratios), max(ratios)) if ratios else (1.0, 1.0)
        self.prices = np.concatenate([[0.0], np.geomspace(low / 2, high * 2, 32)])
        self.paths = self._paths(self.prices)

    def tightest(self, missing_bytes: int, keep: int = 8) -> Bound:
        """Return the bound whose prices fit best when so many bytes must be freed."""
        best = int(np.argmax(self.paths[0] + self.prices * missing_bytes))
        low, high = self.prices[max(0, best - 1)], self.prices[min(len(self.prices) - 1, best + 1)]
        prices = np.linspace(low, high, 24)
        paths = self._paths(prices)
        order = np.argsort(-(paths[0] + prices * missing_bytes))[:keep]
        return Bound(prices[order], paths[:, order], missing_bytes)

    def _paths(self, prices: Floats) -> Floats:
        paths = np.full((self.n_blocks + 1, prices.size), np.inf)
        paths[self.n_blocks] = 0.0
        for block in reversed(range(self.n_blocks)):
            for batch in self.leaving[block]:
                costs = batch.cost[:, None] - prices[None, :] * batch.freed[:, None]
                paths[block] = np.minimum(paths[block], costs.min(axis=0) + paths[batch.stop])
        return paths
