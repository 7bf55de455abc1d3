"""The meter of accelerators: what the allocator itself counted. Made by `meter.meter_for`."""

from __future__ import annotations

import torch
from typing_extensions import Self, override

from planner.memory.meter import Meter


class AllocatorMeter(Meter):
    """Reads `torch.accelerator.max_memory_allocated`, with the device synchronised around it.

    On CUDA that is `torch.cuda.max_memory_allocated`. It counts every tensor of the process on that
    device, workspaces of libraries included, as a user who reads the same function does. The
    allocator has one peak: of nested meters, only the innermost is right, and nothing else may
    reset the peak meanwhile.

    Args:
        device: a device of the accelerator; without an index, the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.index is None:
            self.device = torch.device(device.type, torch.accelerator.current_device_index())
        self.baseline_bytes = 0
        self._entered = False
        self._final_live_bytes = self._final_peak_bytes = self._final_reserved_bytes = 0

    @property
    @override
    def live_bytes(self) -> int:
        if not self._entered:
            return self._final_live_bytes
        torch.accelerator.synchronize(self.device)
        return torch.accelerator.memory_allocated(self.device)

    @property
    @override
    def peak_bytes(self) -> int:
        if not self._entered:
            return self._final_peak_bytes
        torch.accelerator.synchronize(self.device)
        return torch.accelerator.max_memory_allocated(self.device)

    @property
    @override
    def reserved_bytes(self) -> int:
        if not self._entered:
            return self._final_reserved_bytes
        return torch.accelerator.max_memory_reserved(self.device)

    @override
    def reset_peak(self) -> None:
        torch.accelerator.synchronize(self.device)
        torch.accelerator.reset_peak_memory_stats(self.device)

    def __enter__(self) -> Self:
        self._entered = True
        self.reset_peak()
        self.baseline_bytes = self.live_bytes
        return self

    def __exit__(self, *error: object) -> None:
        self._final_peak_bytes, self._final_live_bytes = self.peak_bytes, self.live_bytes
        self._final_reserved_bytes = self.reserved_bytes
        self._entered = False
