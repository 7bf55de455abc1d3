"""How long ops and steps take. Times are minima over a few runs: noise only ever adds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from typing_extensions import Self

from planner.memory.workspaces import Workspaces
from planner.replay.traits import traits_of
from planner.replay.transparent_mode import TransparentMode

LEAST_NS = 1_000
"""What the least kernel takes, about."""

ARRIVALS = 9
"""Tiny ops timed; the least time counts."""


class OpTimer(TransparentMode):
    """Times each op of a step that makes or writes memory, in order.

    On the CPU by the clock; on other devices by events, read when the step is over. Where a device
    has nothing to do, two events around an op also hold the time until the op arrives, which in a
    step that keeps the device busy does not show: it is taken off again.

    Args:
        device: where the step runs.
        workspaces: measures what ops take inside themselves; by default nothing does.
    """

    def __init__(self, device: torch.device, workspaces: Workspaces | None = None) -> None:
        super().__init__()
        self.device = device
        self.workspaces = workspaces or Workspaces()
        self.names: list[str] = []
        self._ticks: list[Any] = []

    def __enter__(self) -> Self:
        self.workspaces.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call, unused-ignore]
        self.workspaces.__exit__()

    @property
    def workspace_bytes(self) -> list[int]:
        """What each op took inside itself, once the step is over."""
        return self.workspaces.taken() or [0] * len(self.names)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run and time one op."""
        if traits_of(func).passthrough:
            return func(*args, **(kwargs or {}))
        self.names.append(str(func))
        self.workspaces.begin()
        timed = self._by_clock if self.device.type == "cpu" else self._with_events
        out = timed(func, args, kwargs or {})
        self.workspaces.end()
        return out

    def _by_clock(self, func: Any, args: Any, kwargs: Any) -> Any:
        start = now_ns()
        out = func(*args, **kwargs)
        self._ticks.append(now_ns() - start)
        return out

    def _with_events(self, func: Any, args: Any, kwargs: Any) -> Any:
        idle = not self._ticks or self._ticks[-1][1].query()
        start, end = _event(self.device), _event(self.device)
        start.record()
        out = func(*args, **kwargs)
        end.record()
        self._ticks.append((start, end, idle))
        return out

    def times_ns(self) -> list[int]:
        """Return the time of each op in nanoseconds."""
        if self.device.type == "cpu":
            return self._ticks
        synchronize(self.device)
        return [
            own_time_ns(int(start.elapsed_time(end) * 1e6), self._arrival_ns if idle else 0)
            for start, end, idle in self._ticks
        ]

    @cached_property
    def _arrival_ns(self) -> int:
        return _arrival_ns(self.device)


def own_time_ns(elapsed_ns: int, arrival_ns: int) -> int:
    """Return what an op itself took of the time between the events around it.

    >>> own_time_ns(90_000, 20_000), own_time_ns(20_500, 20_000), own_time_ns(600, 20_000)
    (70000, 1000, 600)
    """
    return max(elapsed_ns - arrival_ns, min(elapsed_ns, LEAST_NS))


def _event(device: torch.device) -> torch.Event:
    return torch.Event(device, enable_timing=True)


def _arrival_ns(device: torch.device) -> int:
    """How long an op takes to arrive at a device that waits for it: nearly all of a tiny one."""
    one = torch.ones(1, device=device)
    found = []
    for _ in range(ARRIVALS):
        start, end = _event(device), _event(device)
        start.record()
        one.neg()
        end.record()
        synchronize(device)
        found.append(int(start.elapsed_time(end) * 1e6))
    return min(found)


def now_ns() -> int:
    """Return the time by which work on the CPU is measured.

    With one thread it is the process's own time, which a busy machine does not stretch; with more
    the wall clock, since work side by side must not count twice.
    """
    return time.process_time_ns() if torch.get_num_threads() == 1 else time.perf_counter_ns()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def best_op_times(
    names: Sequence[str], times_ns: Sequence[int], runs: Sequence[OpTimer]
) -> list[int]:
    """Return each op's least time over the timed runs of the same ops and the recorded run.

    A recorded run goes by the clock: on other devices than the CPU it shows how long an op takes to
    be queued, and counts only where no timed run is of the same ops.
    """
    timed = [run for run in runs if run.names == list(names)]
    by_clock = all(run.device.type == "cpu" for run in timed)
    found = [run.times_ns() for run in timed]
    return [min(times) for times in zip(*found, *([times_ns] if by_clock else []), strict=True)]


def time_run(run: Callable[[], object], device: torch.device) -> int:
    """Return how long one run takes, in nanoseconds."""
    clock = now_ns if device.type == "cpu" else time.perf_counter_ns
    synchronize(device)
    start = clock()
    run()
    synchronize(device)
    return clock() - start
