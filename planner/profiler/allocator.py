"""What a device's allocator counts beyond the tensors that ops return.

Kernels take memory from it that no tensor shows: workspaces, which live while one op runs, and what
libraries and other models hold all the time. Used by the recorder and the timers. Everything here
asks `torch.accelerator`, whichever that is; the CPU's allocator keeps no count.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from planner.documents import Storage
from planner.profiler.blocks import LARGE_BYTES, UNSPLIT_BYTES, Blocks

_PEAK, _NOW = "allocated_bytes.all.peak", "allocated_bytes.all.current"


def blocks_of(device: torch.device) -> Blocks | None:
    """Return how a device's allocator counts; None where none keeps a count.

    Asked once a process, with 12 MiB that are given back: no meter may be open then.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or device.type != found.type:
        return None
    return _asked(torch.accelerator.current_device_index())


@cache
def _asked(index: int) -> Blocks | None:
    """Let an allocator say its rule by what it counts for two tensors."""
    try:
        block = _counted(index, 1)
        if not block:
            return None
        torch.accelerator.empty_cache()  # only fresh memory shows the rule
        large = LARGE_BYTES + UNSPLIT_BYTES
        return Blocks(block, whole_pages=_counted(index, large) > -(-large // block) * block)
    except RuntimeError:  # an accelerator without such an allocator, or not a byte left
        return None


def _counted(index: int, size: int) -> int:
    before = torch.accelerator.memory_allocated(index)
    # a storage, not a tensor: no dispatch mode may make a fake of it or count it
    kept = torch.UntypedStorage(size, device=torch.accelerator.current_accelerator())
    after: int = torch.accelerator.memory_allocated(index)
    del kept
    return after - before


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
    return Workspaces() if blocks_of(device) is None else CountedWorkspaces(device)


def allocated_bytes(device: torch.device) -> int:
    """Return what the allocator counts now; 0 where nobody counts."""
    if blocks_of(device) is None:
        return 0
    found: int = torch.accelerator.memory_allocated(device.index)
    return found


def warm_libraries(device: torch.device) -> None:
    """Let libraries take what they keep for good: cuBLAS at its first product in either thread."""
    if blocks_of(device) is not None:
        square = torch.ones(8, 8, device=device, requires_grad=True)
        (square @ square).sum().backward()


def release_cached(device: torch.device) -> None:
    """Give back memory that was freed and is kept for later, after an allocation has failed."""
    if blocks_of(device) is not None:
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
