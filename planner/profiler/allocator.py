"""What a device's allocator counts beyond the tensors that ops return.

CUDA's caching allocator hands out blocks of 512 bytes. Kernels take memory from it that no tensor
shows: workspaces, which live while one op runs, and what libraries and other models hold all the
time. Used by the recorder and the timers; the CPU's allocator keeps no count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from planner.documents import Storage

CUDA_BLOCK_BYTES = 512
"""CUDA's caching allocator hands out multiples of this (`kMinBlockSize`), and counts them so."""

_COUNTING = ("cuda", "xpu")
_PEAK, _NOW = "allocated_bytes.all.peak", "allocated_bytes.all.current"


class Workspaces:
    """Measures what an op allocates and frees inside itself: nothing, where nobody counts."""

    def begin(self) -> None:
        """An op is about to run."""

    def end(self) -> int:
        """The op has returned; return the most bytes inside it over those alive now."""
        return 0


class CountedWorkspaces(Workspaces):
    """Measures by the allocator's own peak, which ops on a stream reach when they are queued.

    Begins a new peak at every op: no meter may be open around it.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = device.index

    def begin(self) -> None:
        """Begin a new peak."""
        torch.accelerator.reset_peak_memory_stats(self._index)

    def end(self) -> int:
        """Return the peak over what is alive now."""
        stats = torch.accelerator.memory_stats(self._index)
        inside: int = stats.get(_PEAK, 0) - stats.get(_NOW, 0)
        return max(0, inside)


def workspaces_of(device: torch.device) -> Workspaces:
    """Return how workspaces on a device are measured."""
    return CountedWorkspaces(device) if device.type in _COUNTING else Workspaces()


def allocated_bytes(device: torch.device) -> int:
    """Return what the allocator counts now; 0 where nobody counts."""
    if device.type not in _COUNTING:
        return 0
    found: int = torch.accelerator.memory_allocated(device.index)
    return found


def warm_libraries(device: torch.device) -> None:
    """Let libraries take what they keep for good: cuBLAS at its first product in either thread."""
    if device.type in _COUNTING:
        square = torch.ones(8, 8, device=device, requires_grad=True)
        (square @ square).sum().backward()


def release_cached(device: torch.device) -> None:
    """Give back memory that was freed and is kept for later, after an allocation has failed."""
    if device.type in _COUNTING:
        torch.accelerator.empty_cache()


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or what it came from, is a failed allocation."""
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
            return True
        error = error.__cause__
    return False


def as_storage(op: int, workspace_bytes: int) -> Storage:
    """Return the storage by which a profile shows an op's workspace."""
    return Storage(workspace_bytes, "activation", op, op, op)


def outside(storages: Iterable[Storage], baseline_bytes: int, ops: int) -> tuple[Storage, ...]:
    """Return a storage for what is alive all step and is none of the step's tensors.

    Args:
        storages: of the profile.
        baseline_bytes: what the allocator counted when the step began.
        ops: number of ops of the step.
    """
    known = sum(storage.bytes for storage in storages if storage.birth < 0)
    if baseline_bytes <= known:
        return ()
    return (Storage(baseline_bytes - known, "buffer", -1, ops, ops),)


def in_blocks(storages: Iterable[Storage], device: torch.device) -> tuple[Storage, ...]:
    """Count storages as the device's allocator does."""
    if device.type != "cuda":
        return tuple(storages)
    block = CUDA_BLOCK_BYTES
    return tuple(replace(s, bytes=-(-s.bytes // block) * block) for s in storages)
