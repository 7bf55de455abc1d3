"""How many bytes an allocator counts for a tensor: whole blocks, and of large memory whole pages.

The numbers are those of torch's `CUDACachingAllocator` (`kMinBlockSize`, `kMinLargeAlloc`,
`kRoundLarge`, `kSmallSize`): a large allocation comes from memory reserved in pages, and what is
left of the last page is split off only where it is more than a small allocation needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.documents import Storage
from planner.units import MIB

LARGE_BYTES = 10 * MIB
PAGE_BYTES = 2 * MIB
UNSPLIT_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rule by which an allocator counts.

    Attributes:
        block_bytes: every size is a multiple of it.
        whole_pages: large memory counts with what is left of its last page, where that is little.
    """

    block_bytes: int
    whole_pages: bool

    def counted(self, size_bytes: int) -> int:
        """Return what counts for a tensor of this size.

        >>> CUDA.counted(1), CUDA.counted(11 * MIB + 1) // MIB, CUDA.counted(13 * MIB - 1) // MIB
        (512, 12, 14)
        """
        size = _up(size_bytes, self.block_bytes)
        whole = _up(size, PAGE_BYTES)
        if self.whole_pages and size >= LARGE_BYTES and whole - size <= UNSPLIT_BYTES:
            return whole
        return size


CUDA = Blocks(512, whole_pages=True)
"""CUDA's allocator with its default settings."""


def in_blocks(storages: Iterable[Storage], blocks: Blocks | None) -> tuple[Storage, ...]:
    """Return storages with the sizes that an allocator counts; None: their own."""
    if blocks is None:
        return tuple(storages)
    return tuple(replace(s, bytes=blocks.counted(s.bytes)) for s in storages)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
