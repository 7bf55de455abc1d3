"""Was memory written out of sight? Told by its content, where looking is cheap.

Code outside torch (NumPy, C libraries, CPU extensions) writes into tensors without any op and
without moving a version counter. While a tape or a profile is recorded, what ops make and what they
read is summed up on the CPU; a sum that changed with no write seen is an UNSEEN WRITE (see `flow`).

Between forward and backward, what a replay will read is watched the same way: the whole of it after
a recorded run, a few words of it after a followed one (`watch`).
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch

LOOKS = 16
"""Looks at one storage at most: a large buffer that is read in many small slices costs no more."""


class Contents:
    """Checksums of storages by slot."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, int]] = {}  # sum, looks left

    def seal(self, slot: int, storage: torch.UntypedStorage) -> None:
        """Take note of what a storage holds now."""
        looks = self._sums[slot][1] - 1 if slot in self._sums else LOOKS
        if looks > 0 and storage.device.type == "cpu":
            self._sums[slot] = (_sum(storage), looks)
        else:
            self._sums.pop(slot, None)

    def changed(self, slot: int, storage: torch.UntypedStorage) -> bool:
        """Whether a sealed storage holds something else now."""
        found = self._sums.get(slot)
        if found is None:
            return False
        before, looks = found
        if looks <= 0:
            del self._sums[slot]
            return False
        now = _sum(storage)
        self._sums[slot] = (now, looks - 1)
        return now != before


class Watch(NamedTuple):
    """How to look at a tensor, and what was seen."""

    look: Callable[[torch.Tensor], int]
    seen: int


def watch(tensor: torch.Tensor, whole: bool) -> Watch | None:
    """Take note of a tensor's content, or None where looking would cost a transfer.

    Args:
        tensor: a plain tensor with memory of its own.
        whole: sum all of it up where it fills its storage, else look at a few words.
    """
    if not tensor.is_cpu:
        return None
    fills = whole and tensor.nbytes == tensor.untyped_storage().nbytes()
    look = _whole if fills else _glance
    return Watch(look, look(tensor))


_word = ctypes.c_uint64.from_address


def _glance(tensor: torch.Tensor) -> int:
    """Four words of a tensor; a write that changes all or most of it changes one of them."""
    storage = tensor.untyped_storage()
    size, address = storage.nbytes(), storage.data_ptr()
    if tensor.is_contiguous():
        start = int(tensor.storage_offset()) * tensor.element_size()
        if start + tensor.nbytes > size:  # the memory was given back
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
