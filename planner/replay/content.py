"""Finds writes that no op reports by comparing the content of memory, on the CPU.

Code outside torch (NumPy, C libraries, CPU extensions) writes into tensors without any op and
without moving a version counter. While a tape or a profile is recorded, checksums are taken of what
ops make and read; a checksum that changed without an op that writes is an UNSEEN WRITE (see
`flow`).

Between forward and backward, what a replay will read is checked the same way: all of it after a
recorded run, a few words of it after a followed one (`sample`).
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch

CHECKSUMS = 16
"""Most checksums of one storage, so that a large buffer read in many small slices stays cheap."""


class _Sealed(NamedTuple):
    """A storage's checksum, and how many more may be taken of it."""

    checksum: int
    left: int


class Contents:
    """Checksums of storages by slot."""

    def __init__(self) -> None:
        self._sealed: dict[int, _Sealed] = {}

    def seal(self, slot: int, storage: torch.UntypedStorage) -> None:
        """Take the checksum of what a storage holds now."""
        left = self._sealed[slot].left - 1 if slot in self._sealed else CHECKSUMS
        if left > 0 and storage.device.type == "cpu":
            self._sealed[slot] = _Sealed(_sum(storage), left)
        else:
            self._sealed.pop(slot, None)

    def changed(self, slot: int, storage: torch.UntypedStorage) -> bool:
        """Whether a sealed storage holds something else now."""
        before = self._sealed.get(slot)
        if before is None:
            return False
        if before.left <= 0:
            del self._sealed[slot]
            return False
        now = _sum(storage)
        self._sealed[slot] = _Sealed(now, before.left - 1)
        return now != before.checksum


class Sample(NamedTuple):
    """What was read of a tensor's content, and how to read it again."""

    read: Callable[[torch.Tensor], int]
    value: int


def sample(tensor: torch.Tensor, whole: bool, even_views: bool = False) -> Sample | None:
    """Return a sample of a tensor's content, or None where reading it would cost a transfer.

    Args:
        tensor: a plain tensor with memory of its own.
        whole: take the checksum of all of it where it fills its storage, else read a few words.
        even_views: also where it does not, of the whole storage.
    """
    if not tensor.is_cpu:
        return None
    fills = whole and (even_views or tensor.nbytes == tensor.untyped_storage().nbytes())
    read = _whole if fills else _few_words
    return Sample(read, read(tensor))


_word = ctypes.c_uint64.from_address


def _few_words(tensor: torch.Tensor) -> int:
    """Four words of a tensor; a write that changes all or most of it changes one of them."""
    storage = tensor.untyped_storage()
    size, address = storage.nbytes(), storage.data_ptr()
    if tensor.is_contiguous():
        start = int(tensor.storage_offset()) * tensor.element_size()
        if start + tensor.nbytes > size:  # the memory was freed
            return 0
        size, address = tensor.nbytes, address + start
    if not address:
        return 0
    if size < 8:
        return int.from_bytes(ctypes.string_at(address, size), "little")
    last, third = address + size - 8, (size - 8) // 3
    return hash(
        (
            _word(address).value,
            _word(address + third).value,
            _word(last - third).value,
            _word(last).value,
        )
    )


def _whole(tensor: torch.Tensor) -> int:
    return _sum(tensor.untyped_storage())


def _sum(storage: torch.UntypedStorage) -> int:
    try:
        size, address = storage.nbytes(), storage.data_ptr()
    except RuntimeError:  # there is no memory behind it (a symbolic zero)
        return 0
    return zlib.crc32((ctypes.c_char * size).from_address(address)) if size and address else 0
