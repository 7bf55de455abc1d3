"""The peak of a step as torch's own profiler shows it: what the CPU's allocator hands out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces its starts and stops

import torch
from torch._C._profiler import _EventType


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages behind some tensors, each storage counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def profiled_peak(step: Callable[[], object], live_bytes: int) -> int:
    """Return the most bytes that are live during a step.

    Args:
        step: what runs.
        live_bytes: live when it begins: parameters, inputs; not what the step releases.
    """
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    sizes: dict[int, int] = {}  # by address, of what was allocated and not released since
    live = peak = live_bytes
    for event in _memory_events(profiler):
        if event.alloc_size > 0:
            sizes[event.ptr] = event.alloc_size
            live += event.alloc_size
        else:  # what was there before, such as gradients, was not counted either
            live -= sizes.pop(event.ptr, 0)
        peak = max(peak, live)
    return peak


def _memory_events(profiler: torch.profiler.profile) -> list[Any]:
    found, waiting = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.typed[0] == _EventType.Allocation:
            found.append(event)
    found.sort(key=lambda event: event.start_time_ns)
    return [event.typed[1] for event in found]
