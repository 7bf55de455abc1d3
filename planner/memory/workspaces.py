"""Workspaces: what an op's kernel allocates and releases inside itself, which no tensor shows.

Scratch memory of convolutions, sorted copies of indices, partial sums. Measured op by op while a
step is recorded or timed: on accelerators by the allocator's own peak, on the CPU by the
allocator's memory events. Used by the recorder and the timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from typing_extensions import Self, override

from planner.documents import Profile, Storage
from planner.memory.allocation_events import AllocationLog, mark
from planner.memory.allocator import blocks_of


class Workspaces:
    """Measures the workspaces of ops that run one after the other; here they are taken to be 0.

    Entered around the step; `begin` and `end` stand around each op.
    """

    def begin(self) -> None:
        """An op is about to run."""

    def end(self) -> None:
        """The op has returned."""

    def taken(self) -> list[int]:
        """Return the bytes of each op that has ended, in order; after the step."""
        return []

    def levels(self) -> list[int]:
        """Return what the step had allocated and not released when each op ended, if known."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class CountedWorkspaces(Workspaces):
    """Measures by the allocator's own peak, which ops on a stream reach when they are queued.

    Begins a new peak at every op: no meter may be open around it.
    """

    def __init__(self, device: torch.device) -> None:
        self._index = device.index
        self._taken: list[int] = []

    @override
    def begin(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self._index)

    @override
    def end(self) -> None:
        # `memory_stats` makes a sorted list of some 70 numbers of this, at every op
        counted = torch._C._accelerator_getDeviceStats(self._index)["allocated_bytes"]["all"]
        self._taken.append(max(0, counted["peak"] - counted["current"]))

    @override
    def taken(self) -> list[int]:
        return self._taken


class LoggedWorkspaces(Workspaces):
    """Measures by the memory events of torch's CPU allocator, which are read after the step."""

    def __init__(self) -> None:
        self._log = AllocationLog()
        self._taken: list[int] = []
        self._levels: list[int] = []

    @override
    def begin(self) -> None:
        mark((self, "begin"))

    @override
    def end(self) -> None:
        mark((self, "end"))

    @override
    def taken(self) -> list[int]:
        return self._taken

    @override
    def levels(self) -> list[int]:
        return self._levels

    def __enter__(self) -> Self:
        self._log.__enter__()
        self._taken, self._levels = [], []
        return self

    def __exit__(self, *error: object) -> None:
        self._log.__exit__()
        sizes: dict[int, int] = {}
        level = highest = 0
        for event in self._log.take():
            if event.mark == (self, "begin"):
                highest = level
            elif event.mark == (self, "end"):
                self._taken.append(highest - level)
                self._levels.append(level)
            elif event.bytes > 0:
                sizes[event.address] = event.bytes
                level += event.bytes
                highest = max(highest, level)
            elif event.mark is None:
                level -= sizes.pop(event.address, 0)


def workspaces_of(device: torch.device) -> Workspaces:
    """Return how workspaces on a device are measured."""
    if blocks_of(device) is not None:
        return CountedWorkspaces(device)
    if device.type == "cpu" and AllocationLog.available():
        return LoggedWorkspaces()
    return Workspaces()


def unseen(storages: Iterable[Storage], levels: Sequence[int]) -> tuple[Storage, ...]:
    """Return storages for memory that an allocator counts across ops and no tensor showed.

    Such are the numbers that C++ code wraps in tensors and autograd saves (`x * 0.5`), and states
    of generators that the step's own code takes. Nothing but the step releases them.

    Args:
        storages: what was seen, without workspaces.
        levels: what the step had allocated when each op ended; empty where nobody counts.

    >>> unseen([Storage(5, "activation", 0, 3, 3)], [5, 13, 13, 5])
    (Storage(bytes=8, category='activation', birth=1, death=2, natural_death=2),)
    """
    if not levels:
        return ()
    change = [0] * (len(levels) + 2)
    for storage in storages:
        if storage.birth >= 0:
            change[storage.birth] += storage.bytes
            change[min(storage.death, len(levels)) + 1] -= storage.bytes
    found: list[Storage] = []
    open_: list[tuple[int, int]] = []  # (birth, bytes)
    before = 0
    for op, (level, seen) in enumerate(zip(levels, accumulate(change), strict=False)):
        now = max(level - seen, 0)
        if now > before:
            open_.append((op, now - before))
        released = before - now
        while released > 0:
            birth, size = open_.pop()
            found.append(Storage(min(size, released), "activation", birth, op - 1, op - 1))
            if size > released:
                open_.append((birth, size - released))
            released -= size
        before = now
    end = len(levels)
    found += (Storage(size, "activation", birth, end, end) for birth, size in open_)
    return tuple(sorted(found, key=lambda s: (s.birth, s.death)))


def with_workspaces(profile: Profile, taken: Iterable[tuple[int, int]]) -> tuple[Storage, ...]:
    """Return a profile's storages with workspaces of at least these bytes.

    Args:
        profile: may hold some workspaces already.
        taken: (op, bytes) pairs.
    """
    shown = {value.storage for value in profile.values}
    known: dict[int, int] = {}
    for number, storage in enumerate(profile.storages):
        if storage.birth == storage.death and number not in shown:
            known[storage.birth] = known.get(storage.birth, 0) + storage.bytes
    more = ((op, size - known.get(op, 0)) for op, size in taken)
    return (*profile.storages, *(as_storage(op, size) for op, size in more if size > 0))


def as_storage(op: int, workspace_bytes: int) -> Storage:
    """Return the storage by which a profile shows an op's workspace."""
    return Storage(workspace_bytes, "activation", op, op, op)
