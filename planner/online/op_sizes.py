"""The sizes of what ops make, seen while they are timed: a kernel may take more than its fake.

The first step runs for real anyway; its sizes cost nothing more and replace those of fakes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch

from planner.documents import Profile
from planner.memory.allocator import blocks_of
from planner.memory.peak import peak_of
from planner.memory.rounding import in_blocks
from planner.profiler.timing import OpTimer
from planner.training_step.storages import lies_on, storages_of, tensors_in


class SizingTimer(OpTimer):
    """An `OpTimer` that also notes the bytes of every storage that an op makes."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.sizes: list[list[int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run, time and measure one op."""
        before = len(self.names)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if len(self.names) > before:
            given = self._storages((args, kwargs or {}))
            made = {key: size for key, size in self._storages((out,)).items() if key not in given}
            self.sizes.append(list(made.values()))
        return out

    def _storages(self, values: Any) -> dict[int, int]:
        """Bytes by storage; one elsewhere than on the device takes none, as in a profile."""
        return {
            storage._cdata: storage.nbytes() if lies_on(tensor, self.device) else 0
            for tensor in tensors_in(values)
            for storage in storages_of(tensor)
        }


def with_sizes(profile: Profile, timer: SizingTimer) -> Profile:
    """Return a profile with the real sizes of what the ops made that ran in the same order."""
    born = defaultdict(list)
    for number, storage in enumerate(profile.storages):
        born[storage.birth].append(number)
    storages, blocks = list(profile.storages), blocks_of(timer.device)
    for index, (op, name) in enumerate(zip(profile.ops, timer.names, strict=False)):
        if op.name != name or op.phase == "backward":
            break
        if len(born[index]) == len(timer.sizes[index]):
            for number, size in zip(born[index], timer.sizes[index], strict=True):
                larger = replace(storages[number], bytes=size)
                (storages[number],) = in_blocks((larger,), blocks)
    peak = peak_of(storages, len(profile.ops))
    return replace(profile, storages=tuple(storages), plain_peak_bytes=peak)
