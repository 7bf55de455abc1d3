"""The memory meter: how many bytes are alive on a device, and the most there were.

`meter_for(device)` gives the meter that decides whether a budget is kept: the allocator's own count
where it keeps one, as CUDA's does (`planner.memory.allocator_meter`), on the CPU the allocator's
memory events (`planner.memory.allocation_meter`), elsewhere an exact count of live storages. Used
by the profiler and the verifier.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import Self, override

from planner.memory.allocation_events import AllocationLog
from planner.memory.allocator import blocks_of
from planner.replay.transparent_mode import TransparentMode
from planner.training_step.storages import storages_of, tensors_in


class Meter(ABC):
    """Counts bytes alive on one device while it is entered.

    Attributes:
        device: the device it counts on.
        baseline_bytes: bytes that were alive when it was entered.
    """

    device: torch.device
    baseline_bytes: int

    @property
    @abstractmethod
    def live_bytes(self) -> int:
        """Bytes alive now, or at the exit once it was left."""

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """The most bytes alive at once since it was entered or reset."""

    @property
    def reserved_bytes(self) -> int | None:
        """The most bytes that an allocator held at once, cached ones included, if it tells."""
        return None

    @abstractmethod
    def reset_peak(self) -> None:
        """Begin a new peak at the bytes alive now."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...


def meter_for(device: torch.device | str, tracked: Iterable[torch.Tensor] = ()) -> Meter:
    """Return the meter for a device.

    Args:
        device: where the model lives.
        tracked: tensors alive before the step (`step_tensors` lists them). An accelerator's
            allocator counts them by itself.

    On the CPU live storages are counted instead where somebody else uses the profiler just now.
    """
    device = torch.device(device)
    if blocks_of(device) is not None:
        from planner.memory.allocator_meter import AllocatorMeter

        return AllocatorMeter(device)
    if device.type == "cpu" and AllocationLog.available():
        from planner.memory.allocation_meter import AllocationMeter

        return AllocationMeter(tracked)
    return StorageMeter(device, tracked)


def step_tensors(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    inputs: Iterable[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """List what is alive before a step: parameters, buffers, gradients, optimizer state, inputs."""
    tensors = [*model.parameters(), *model.buffers(), *inputs]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    if optimizer is not None:
        tensors += tensors_in(optimizer.state.values())
    return tensors


class StorageMeter(Meter):
    """Sums the bytes of the live storages on a device, exactly.

    A storage is counted once, from when it is first seen (as an op's result, or as an argument not
    seen before) until it really dies. The peak is taken after each op's results are counted, so
    what a kernel allocates and frees inside itself is not part of it, nor is what a compiled
    region holds. Works within backward, among other dispatch modes, and on the meta device.

    Args:
        device: storages on devices of this kind are counted.
        tracked: tensors alive from the start.
    """

    def __init__(self, device: torch.device | str, tracked: Iterable[torch.Tensor] = ()) -> None:
        self.device = torch.device(device)
        self._lock = threading.RLock()
        self._alive: dict[int, _Watch] = {}
        # Storages die in any thread and at any moment, so a death only queues; counting settles it.
        self._dead: deque[_Watch] = deque()
        self._live_bytes = self._peak_bytes = 0
        self._mode: _CountingMode | None = None
        self.count(tracked)
        self.baseline_bytes = self._peak_bytes

    @property
    @override
    def live_bytes(self) -> int:
        with self._lock:
            self._settle()
            return self._live_bytes

    @property
    @override
    def peak_bytes(self) -> int:
        return self._peak_bytes

    @override
    def reset_peak(self) -> None:
        self._peak_bytes = self.live_bytes

    def count(self, tensors: Iterable[Any]) -> None:
        """Count the storages behind these tensors (nested in lists, tuples and dicts or not)."""
        with self._lock:
            self._settle()
            for tensor in tensors_in(tensors):
                for storage in storages_of(tensor):
                    self._see(storage)
            self._peak_bytes = max(self._peak_bytes, self._live_bytes)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage again after its size changed with no op seen."""
        with self._lock:
            self._settle()
            self._see(storage)
            self._peak_bytes = max(self._peak_bytes, self._live_bytes)

    def mode(self) -> TransparentMode:
        """Return a dispatch mode that counts for this meter, for threads that the step starts.

        Modes belong to a thread. Entering the meter covers the thread that does so, and backward.
        """
        return _CountingMode(self)

    def __enter__(self) -> Self:
        if self._mode is not None:
            raise RuntimeError("this meter is entered already; use mode() in other threads")
        self.baseline_bytes = self.live_bytes
        self.reset_peak()
        self._mode = _CountingMode(self)
        _watch_resizes(self)
        self._mode.__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(self, *error: object) -> None:
        assert self._mode is not None
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call, unused-ignore]
        self._mode = None
        _unwatch_resizes(self)

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        watch = self._alive.get(key)
        if watch is not None and watch() is storage:
            self._live_bytes += nbytes - watch.nbytes
            watch.nbytes = nbytes
        elif storage.device.type == self.device.type:
            watch = self._alive[key] = _Watch(storage, self._dead.append)
            watch.key, watch.nbytes = key, nbytes
            self._live_bytes += nbytes

    def _settle(self) -> None:
        while self._dead:
            watch = self._dead.popleft()
            self._live_bytes -= watch.nbytes
            if self._alive.get(watch.key) is watch:
                del self._alive[watch.key]


class CpuMeter(StorageMeter):
    """Sums the bytes of the live storages in host memory, exactly; see `StorageMeter`."""

    def __init__(self, tracked: Iterable[torch.Tensor] = ()) -> None:
        super().__init__("cpu", tracked)


class _Watch(weakref.ref["torch.UntypedStorage"]):
    """A weak reference to a counted storage.

    torch keeps a storage's Python object for as long as the storage itself lives, so this
    reference dies when the memory is freed and not before.
    """

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class _CountingMode(TransparentMode):
    """Shows every op's arguments and results to a meter."""

    def __init__(self, meter: StorageMeter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # the wrapper unwraps itself, and its inner ops come back here
        self._meter.count((args, kwargs))
        result = func(*args, **kwargs)
        # The arguments again: the op may have resized or replaced their storages.
        self._meter.count((args, kwargs, result))
        return result


# `UntypedStorage.resize_` is no op and so passes no dispatch mode. While a meter is open the method
# is replaced by one that tells the meter.
_plain_resize = torch.UntypedStorage.resize_
_open_meters: list[StorageMeter] = []
_open_meters_lock = threading.Lock()


def _counted_resize(storage: Any, size: int) -> Any:
    result = _plain_resize(storage, size)
    for meter in tuple(_open_meters):
        meter.resized(storage)
    return result


def _watch_resizes(meter: StorageMeter) -> None:
    with _open_meters_lock:
        _open_meters.append(meter)
        torch.UntypedStorage.resize_ = _counted_resize  # type: ignore[method-assign, assignment]


def _unwatch_resizes(meter: StorageMeter) -> None:
    with _open_meters_lock:
        _open_meters.remove(meter)
        if not _open_meters:
            torch.UntypedStorage.resize_ = _plain_resize  # type: ignore[method-assign, unused-ignore]
