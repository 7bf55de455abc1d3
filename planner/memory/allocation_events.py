"""The memory events of torch's CPU allocator: every allocation and every release, in order.

They are those that `torch.profiler.profile(profile_memory=True)` shows; only memory events are
recorded here, no ops, so that a step under a log runs about as fast as without. To see the same
figures with torch alone::

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    memory = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    live = peak = bytes_before  # parameters, buffers, gradients, optimizer state, inputs
    for event in memory:
        live += event.nbytes()
        peak = max(peak, live)

The profiler has one session a process, and what it records belongs to the thread that began it
and to the backward of that thread. Logs may be nested: an inner one shares the session. Used by
`planner.memory.meter` and `planner.memory.kernel_workspaces`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._C._autograd import (
    _disable_profiler,
    _enable_profiler,
    _prepare_profiler,
    _profiler_enabled,
)
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _EventType,
    _ExperimentalConfig,
)
from typing_extensions import Self

_MARKS = (12_347, 12_343)
"""Sizes of two allocations that stand for a mark: no kernel makes the two in turn."""

_ALLOCATION = _EventType.Allocation
_ACTIVITIES = {ProfilerActivity.CPU}
_SCOPES = {RecordScope.STATIC_RUNTIME_MODEL}
"""A scope in which nothing runs, so that no op is recorded."""

_LOG_LEVEL = "KINETO_LOG_LEVEL"
"""Without it the profiler's library reports each start and stop on stderr."""


class Event(NamedTuple):
    """One event.

    Attributes:
        bytes: allocated, or released where negative; 0 for a mark.
        address: of the memory; 0 for a mark.
        mark: what was marked here, or None.
    """

    bytes: int
    address: int
    mark: object = None


class AllocationLog:
    """The events between entry and exit, in the order in which they happened."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    @staticmethod
    def available() -> bool:
        """Return whether a log can be opened here: no one else uses the profiler."""
        if _session.logs:
            return _session.thread == threading.get_ident()
        return not _profiler_enabled()

    def take(self) -> list[Event]:
        """Return the events since the entry or the last call."""
        if self in _session.logs:
            _session.read()
        events, self._events = self._events, []
        return events

    def extend(self, events: list[Event]) -> None:
        """Add what the session has read."""
        self._events += events

    def __enter__(self) -> Self:
        _session.open(self)
        return self

    def __exit__(self, *error: object) -> None:
        _session.close(self)


def mark(what: object) -> None:
    """Leave a mark among the events of all open logs; nothing from other threads than theirs."""
    _session.mark(what)


class _Session:
    """The profiler's session, open while any log is."""

    def __init__(self) -> None:
        self.logs: list[AllocationLog] = []
        self.thread = 0
        self._marks: list[object] = []

    def open(self, log: AllocationLog) -> None:
        if self.logs:
            self.read()
        else:
            self.thread = threading.get_ident()
            _start()
        self.logs.append(log)

    def close(self, log: AllocationLog) -> None:
        self._hand_out()
        self.logs.remove(log)
        if self.logs:
            _start()

    def read(self) -> None:
        """Hand the events so far to all logs; nothing is allocated while the profiler rests."""
        self._hand_out()
        _start()

    def mark(self, what: object) -> None:
        if self.logs and self.thread == threading.get_ident():
            self._marks.append(what)
            for size in _MARKS:
                torch.UntypedStorage(size)  # passes no dispatch mode, as an op would

    def _hand_out(self) -> None:
        tree = _disable_profiler().experimental_event_tree()
        seen: list[Any] = [event.extra_fields for event in tree if event.tag == _ALLOCATION]
        changes = [(e.alloc_size, e.ptr) for e in seen if e.device.type == "cpu"]
        marks, self._marks = self._marks, []
        events = list(_with_marks(changes, iter(marks)))
        for log in self.logs:
            log.extend(events)


_session = _Session()


def _start() -> None:
    config = ProfilerConfig(
        ProfilerState.KINETO,
        False,  # input shapes
        True,  # memory
        False,  # stacks
        False,  # flops
        False,  # modules
        _ExperimentalConfig(),
    )
    silent = _LOG_LEVEL not in os.environ
    if silent:
        os.environ[_LOG_LEVEL] = "6"
    try:
        _prepare_profiler(config, _ACTIVITIES)
        enable: Any = _enable_profiler  # its stub lacks the third argument
        enable(config, _ACTIVITIES, _SCOPES)
    finally:
        if silent:
            del os.environ[_LOG_LEVEL]


def _with_marks(changes: list[tuple[int, int]], marks: Iterator[object]) -> Iterator[Event]:
    """Put marks where their allocations stand."""
    first, second = _MARKS
    pattern = [first, -first, second, -second]
    at = 0
    while at < len(changes):
        size, address = changes[at]
        if size == first and [change[0] for change in changes[at : at + 4]] == pattern:
            yield Event(0, 0, next(marks))
            at += 4
        else:
            yield Event(size, address)
            at += 1
