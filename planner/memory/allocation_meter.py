"""The meter of the CPU: what torch's CPU allocator handed out. Made by `meter.meter_for`.

Its figures are those of `torch.profiler` with `profile_memory=True`;
`planner.memory.allocation_events` shows how to read them without planner.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from typing_extensions import Self, override

from planner.memory.allocation_events import AllocationLog, mark
from planner.memory.meter import Meter
from planner.training_step.storages import lies_on, storages_of, tensors_in


class _Released(NamedTuple):
    """A mark: memory from before a meter was released."""

    meter: int
    bytes: int


class AllocationMeter(Meter):
    """Plays the allocator's events: kernels' temporaries and generator states count.

    Memory that was there before counts at the size of its storage, until it is released. What
    other threads than the one that enters it allocate is not seen, but for backward.

    Args:
        tracked: tensors alive before (`step_tensors` lists them).
    """

    def __init__(self, tracked: Iterable[torch.Tensor] = ()) -> None:
        self.device = torch.device("cpu")
        self._log = AllocationLog()
        self._sizes: dict[int, int] = {}  # by address, of what was allocated meanwhile
        self._tracked = {
            storage._cdata: weakref.ref(storage, _releaser(id(self), storage.nbytes()))
            for tensor in tensors_in(tracked)
            if lies_on(tensor, self.device)
            for storage in storages_of(tensor)
        }
        self.baseline_bytes = self._live_bytes = self._peak_bytes = self._tracked_bytes()

    @property
    @override
    def live_bytes(self) -> int:
        self._play()
        return self._live_bytes

    @property
    @override
    def peak_bytes(self) -> int:
        self._play()
        return self._peak_bytes

    @override
    def reset_peak(self) -> None:
        self._peak_bytes = self.live_bytes

    def __enter__(self) -> Self:
        self._log.__enter__()
        self._sizes.clear()
        self.baseline_bytes = self._live_bytes = self._peak_bytes = self._tracked_bytes()
        return self

    def __exit__(self, *error: object) -> None:
        self._log.__exit__()
        self._play()
        self._tracked.clear()

    def _tracked_bytes(self) -> int:
        found = (reference() for reference in self._tracked.values())
        return sum(storage.nbytes() for storage in found if storage is not None)

    def _play(self) -> None:
        for event in self._log.take():
            if event.mark is not None:
                if isinstance(event.mark, _Released) and event.mark.meter == id(self):
                    self._live_bytes -= event.mark.bytes
            elif event.bytes > 0:
                self._sizes[event.address] = event.bytes
                self._live_bytes += event.bytes
                self._peak_bytes = max(self._peak_bytes, self._live_bytes)
            else:  # what was there before is none of the log's
                self._live_bytes -= self._sizes.pop(event.address, 0)


def _releaser(meter: int, size: int) -> Callable[[object], None]:
    return lambda reference: mark(_Released(meter, size))
