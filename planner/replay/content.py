"""Was memory written out of sight? Told by its content, where looking is cheap.

Code outside torch (NumPy, C libraries, CPU extensions) writes into tensors without any op and
without moving a version counter. While a tape or a profile is recorded, what ops make and what they
read is summed up on the CPU; a sum that changed with no write seen is an UNSEEN WRITE (see `flow`).
"""

from __future__ import annotations

import ctypes
import zlib

import torch

LOOKS = 16
"""Looks at one storage at most: a large buffer that is read in many small slices costs no more."""


class Contents:
    """Checksums of storages by slot."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[int, int]] = {}  # sum, looks left

    def seal(self, slot: int, tensor: torch.Tensor) -> None:
        """Take note of what a storage holds now."""
        looks = self._sums[slot][1] - 1 if slot in self._sums else LOOKS
        if looks > 0 and tensor.untyped_storage().device.type == "cpu":
            self._sums[slot] = (_sum(tensor), looks)
        else:
            self._sums.pop(slot, None)

    def changed(self, slot: int, tensor: torch.Tensor) -> bool:
        """Whether a sealed storage holds something else now."""
        found = self._sums.get(slot)
        if found is None:
            return False
        before, looks = found
        if looks <= 0:
            del self._sums[slot]
            return False
        now = _sum(tensor)
        self._sums[slot] = (now, looks - 1)
        return now != before


def _sum(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    try:
        size, address = storage.nbytes(), storage.data_ptr()
    except RuntimeError:  # there is no memory behind it (a symbolic zero)
        return 0
    return zlib.crc32((ctypes.c_char * size).from_address(address)) if size and address else 0
