"""How many options are measured: lengths of runs, and ways to replay one, within a fixed effort.

Called by `menu`. Equal runs are measured once, so long models of equal blocks get
as many lengths as short ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.chain.blocks import Blocks

WORK_OPS = 20_000
WORK_PASSES = 12
"""Ops played in all while options are measured: so many, about half a second, and so many times
the ops of one forward. They decide how many run lengths and ways there are."""
_RUN_OPS = 20  # what measuring a run costs besides its ops
_DENSITIES = ((24, 1.15), (16, 1.2), (8, 1.25), (6, 1.4), (4, 1.5), (4, 2.0), (2, 2.0), (2, 3.0))
"""All lengths up to the first number, then growing by the second."""
LEAST_WAYS = 3
"""Ways to replay a long run in parts, whatever the effort."""
_WAYS = (1_000, 64, 32, 16, 12, 8, 6, 4, LEAST_WAYS)


@dataclass(frozen=True, slots=True)
class Effort:
    """What is measured.

    Attributes:
        lengths: of runs, in blocks, ascending.
        ways: most ways to replay a run in parts.
    """

    lengths: tuple[int, ...]
    ways: int


def effort(blocks: Blocks) -> Effort:
    """Return the most lengths with few ways, then the most ways, that the work allows."""
    count = len(blocks)
    most = WORK_OPS + WORK_PASSES * (blocks.edges[-1] - blocks.edges[0] if count else 0)
    lengths: list[int] = []
    for dense, growth in _DENSITIES:
        lengths, size = list(range(1, dense + 1)), float(dense)
        while size * growth <= count:
            size = max(size + 1, size * growth)
            lengths.append(int(size))
        lengths = sorted({n for n in lengths if n <= count})
        if _work(blocks, lengths, LEAST_WAYS) <= most:
            break
    ways = next((n for n in _WAYS if _work(blocks, lengths, n) <= most), LEAST_WAYS)
    return Effort(tuple(lengths), ways)


def _work(blocks: Blocks, lengths: list[int], ways: int) -> int:
    """Ops played when every kind of run is measured in so many ways."""
    edges, kinds = blocks.edges, blocks.kinds
    sizes: dict[tuple[int, ...], int] = {}
    for length in lengths:
        passes = 1 + min(ways, 2 * (length - 1))  # short runs have few ways
        for first in range(len(kinds) - length + 1):
            ops = edges[first + length] - edges[first] + _RUN_OPS
            sizes[kinds[first : first + length]] = ops * passes
    return sum(sizes.values())
