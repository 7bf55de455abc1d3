"""What an accelerator's allocator counts beyond the tensors that ops return.

Kernels take memory from it that no tensor shows: workspaces, which live while one op runs (see
`planner.memory.workspaces`), and what libraries and other models hold all the time. Everything here
asks `torch.accelerator`, whichever that is; the CPU's allocator keeps no such count.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from statistics import median_low
from typing import Any

import torch

from planner.documents import Storage
from planner.memory.allocator_settings import splits_everything
from planner.memory.rounding import CUDA, Blocks


def blocks_of(device: torch.device) -> Blocks | None:
    """Return how a device's allocator counts; None where none keeps a count.

    The settings in force decide, and may change. A few bytes are taken to see whether anybody
    counts, once a process.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or device.type != found.type:
        return None
    block = _block_bytes(torch.accelerator.current_device_index())
    whole = block == CUDA.block_bytes and not splits_everything()
    return Blocks(block, whole_pages=whole) if block else None


def _block_bytes(index: int) -> int:
    """What counts for the smallest tensor; 0 where nothing does."""
    try:
        return _asked(index)
    except torch.OutOfMemoryError:  # for now: the next one who asks may find more room
        return CUDA.block_bytes if torch.accelerator.memory_allocated(index) else 0


@cache
def _asked(index: int) -> int:
    try:
        return median_low(_counted_for_a_byte(index) for _ in range(3))  # others may allocate, too
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # an accelerator without such an allocator
        return 0


def _counted_for_a_byte(index: int) -> int:
    before = torch.accelerator.memory_allocated(index)
    # a storage, not a tensor: no dispatch mode may make a fake of it or count it
    kept = torch.UntypedStorage(1, device=torch.accelerator.current_accelerator())
    after: int = torch.accelerator.memory_allocated(index)
    del kept
    return after - before


def allocated_bytes(device: torch.device) -> int:
    """Return what the allocator counts now; 0 where nobody counts."""
    if blocks_of(device) is None:
        return 0
    found: int = torch.accelerator.memory_allocated(device.index)
    return found


def warm_libraries(device: torch.device) -> None:
    """Let libraries take what they keep for good.

    cuBLAS does so at the first product in a thread, and cuBLASLt at the first one with a bias. A
    plain step runs none with a bias in the thread of backward, but replays do. What fails here, for
    want of memory or of a kernel for a dtype, is left to the step.
    """
    if blocks_of(device) is None:
        return
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        with torch.inference_mode(False), torch.enable_grad(), suppress(RuntimeError):
            square = torch.ones(16, 16, dtype=dtype, device=device, requires_grad=True)
            _Products.apply(square).sum().backward()


class _Products(torch.autograd.Function):
    """Products without and with a bias, in the thread of forward and in that of backward."""

    @staticmethod
    def forward(ctx: Any, square: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(square)
        return _products(square)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (square,) = ctx.saved_tensors
        return _products(square)


def _products(square: torch.Tensor) -> torch.Tensor:
    return torch.addmm(square[0], square, square) + square @ square


def release_cached(device: torch.device) -> None:
    """Give back memory that nobody can reach any more, and what is kept of it for later.

    Where an allocator counts, garbage on the device would count as well. Not for the middle of
    training.
    """
    if blocks_of(device) is not None:
        gc.collect()
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
