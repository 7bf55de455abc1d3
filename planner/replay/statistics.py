"""Copies running statistics that a waiting replay needs before another segment updates them.

Batch norm in evaluation mode reads its running statistics, and a replay of that forward reads them
again. A training forward of the same module in between changes them without moving a version. So
closed runs register here until their backward, and copy what they need when such a kernel is about
to run.
"""

from __future__ import annotations

import threading
from weakref import WeakSet

import torch

from planner.replay.program import Program
from planner.replay.sources import Source
from planner.replay.state import SegmentState
from planner.replay.views import copy_storage

_waiting: dict[int, WeakSet[SegmentState]] = {}  # by address of the statistics' storage
_lock = threading.Lock()


def wait_for_backward(state: SegmentState, program: Program) -> None:
    """Register a closed run whose replays read statistics."""
    for key in program.statistics:
        source = state.sources[key]
        if source.version is not None:
            address = source.tensor.untyped_storage()._cdata
            with _lock:
                _waiting.setdefault(address, WeakSet()).add(state)


def about_to_change(tensor: torch.Tensor) -> None:
    """Copy a statistic for all registered runs: a kernel is about to update it."""
    address = tensor.untyped_storage()._cdata
    if address not in _waiting:
        return
    with _lock:
        states = list(_waiting.pop(address, ()))
    for state in states:
        for key, source in list(state.sources.items()):
            if source.version is not None and source.tensor.untyped_storage()._cdata == address:
                state.sources[key] = Source(copy_storage(source.tensor), None, None)
