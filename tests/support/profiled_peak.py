"""The peak of a step as torch's own profiler shows it: what the CPU's allocator hands out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces its starts and stops

import torch


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages behind some tensors, each storage counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def profiled_peak(step: Callable[[], object], live_bytes: int) -> int:
    """Return the most bytes that are live during a step.

    Args:
        step: what runs.
        live_bytes: live when it begins: parameters, inputs, whatever else counts.
    """
    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = live_bytes
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
