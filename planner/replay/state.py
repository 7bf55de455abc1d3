"""What one run of a segment leaves behind for backward.

Autograd's graph holds `Placeholder`s instead of the tensors that were dropped; a placeholder holds
the run's `SegmentState`; the state holds the sources. Nothing points the other way, so that
everything goes with the graph.

Freeing follows backward: a group's sources go as soon as its replay has used them (unless the
graph is to be kept), a replayed value goes with the last placeholder that needs it, and a
placeholder goes when autograd releases the node that saved it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch

from planner.replay.content import sample
from planner.replay.flow import Arg, Key
from planner.replay.program import Pack, Program
from planner.replay.record import OpRecord
from planner.replay.replaying import ReplayCount, StepValues, random_ops, replay_group
from planner.replay.sources import Delivered, Source, checked_delivery, checked_source, version_of
from planner.replay.surroundings import Surroundings, run_below
from planner.replay.views import rebuild

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


class OpenRun(Protocol):
    """A run that is still open, as its state sees it."""

    @property
    def records(self) -> Sequence[OpRecord]:
        """The ops so far."""

    @property
    def packs(self) -> Sequence[Pack]:
        """What autograd packed so far."""

    def value_now(self, key: Key) -> torch.Tensor:
        """Replay a dropped value while the segment is still open."""


class Placeholder:
    """Stands in autograd's graph for one tensor that was dropped."""

    __slots__ = ("arg", "key", "state")

    def __init__(self, state: SegmentState, arg: Arg, key: Key) -> None:
        self.state = state
        self.arg = arg
        self.key = key

    def __del__(self) -> None:
        if hasattr(self, "key"):  # else an interrupt came while it was made
            self.state.forget(self.key)


class SegmentState:
    """Sources, replayed values and bookkeeping of one run of one segment.

    Attributes:
        name: the segment's label, for errors.
        count: counts replayed ops (shared by all runs of an applied plan).
        program: what the run taught or followed; None while it is open.
        open_run: the run while it is open.
        sources: values that replays read.
        step_values: what replays need of this run beside the program.
        delivered: values that a replay made and that are still needed.
        placeholders: how many placeholders there are of each dropped value.
        servings: how often each delivered value was unpacked, when the graph is kept.
    """

    __slots__ = (
        "_cell_uses",
        "_lock",
        "_replayed_groups",
        "_source_uses",
        "__weakref__",
        "count",
        "delivered",
        "name",
        "open_run",
        "placeholders",
        "program",
        "servings",
        "sources",
        "step_values",
        "surroundings",
    )

    def __init__(self, name: str, count: ReplayCount) -> None:
        self.name = name
        self.count = count
        self.surroundings = Surroundings.here()
        self.program: Program | None = None
        self.open_run: OpenRun | None = None
        self.sources: dict[Key, Source] = {}
        self.step_values = StepValues()
        self.delivered: dict[Key, Delivered] = {}
        self.placeholders: dict[Key, int] = {}
        self.servings: dict[Key, int] = {}
        self._source_uses: dict[Key, int] = {}
        self._cell_uses: dict[Key, int] = {}
        self._replayed_groups: set[int] = set()
        self._lock = threading.RLock()

    def close(self, program: Program, sources: dict[Key, Source]) -> None:
        """Attach the program and what its replays read, once the segment is closed."""
        self.open_run = None
        self.program = program
        self.sources = sources
        self._source_uses = dict(program.source_uses)
        self._cell_uses = dict(program.cell_uses)

    def add_placeholder(self, key: Key) -> None:
        """Count one more placeholder of a dropped value."""
        self.placeholders[key] = self.placeholders.get(key, 0) + 1

    def deliver(self, key: Key, tensor: torch.Tensor) -> None:
        """Serve a dropped value from this tensor, as long as anything needs it."""
        uses = self._cell_uses.get(key, 0)
        if uses > 0 or self.placeholders.get(key, 0) > 0:
            content = sample(tensor, whole=False) if uses > 0 else None
            self.delivered[key] = Delivered(tensor, version_of(tensor), content)

    def forget(self, key: Key) -> None:
        """A placeholder of this value is gone."""
        left = self.placeholders.get(key, 0) - 1
        self.placeholders[key] = left
        if left <= 0 and self._cell_uses.get(key, 0) <= 0:
            self.delivered.pop(key, None)

    def value(self, arg: Arg) -> torch.Tensor:
        """Return the tensor that a placeholder stands for, replaying its group if need be."""
        key = (arg.slot, arg.version)
        found = self.delivered.get(key)
        if found is not None and not self.servings:
            there: torch.Tensor = rebuild(checked_delivery(self.name, found), arg)
            return there
        with self._lock:
            found = self.delivered.get(key)
            if found is None:
                base = run_below(self.surroundings, self._make, key)
            else:
                base = checked_delivery(self.name, found)
            view: torch.Tensor = rebuild(base, arg)
            if self.servings:
                self._count_serving(key)
            return view

    def release(self, key: Key) -> None:
        """One group is done with a source or a cell of another group."""
        uses = self._source_uses.get(key)
        if uses is not None:
            self._source_uses[key] = uses - 1
            if uses <= 1:
                self.sources.pop(key, None)
            return
        uses = self._cell_uses.get(key)
        if uses is not None:
            self._cell_uses[key] = uses - 1
            if uses <= 1 and self.placeholders.get(key, 0) <= 0:
                self.delivered.pop(key, None)

    def checked_source(self, key: Key) -> torch.Tensor:
        """Return a held source; raises when it was modified since the forward read it."""
        return checked_source(self.name, self.sources.get(key))

    def _make(self, key: Key) -> torch.Tensor:
        if self.program is None:
            assert self.open_run is not None
            return self.open_run.value_now(key)
        self._run(self.program, self.program.owner[key], _keeps_graph())
        return self.delivered[key].tensor

    def _count_serving(self, key: Key) -> None:
        """When the graph is kept, a value goes after each placeholder has been served once."""
        if key in self.servings:
            self.servings[key] += 1
            enough = self.servings[key] >= self.placeholders.get(key, 0)
            if enough and self._cell_uses.get(key, 0) <= 0:
                del self.servings[key]
                self.delivered.pop(key, None)

    def _run(self, program: Program, number: int, keep_graph: bool) -> None:
        """Replay a group, and before it the groups that make what it reads."""
        group = program.groups[number]
        env = {key: self.checked_source(key) for key in group.sources}
        for key in group.cells:
            env[key] = self._cell(program, key, keep_graph)
        last = not keep_graph and number not in self._replayed_groups
        if last:
            self._replayed_groups.add(number)
        release = self.release if last else None
        replay_group(group, program.records, env, self.step_values, self.count, release)
        if last:
            for op in random_ops(group, program.records):
                self.step_values.generator_states.release(op, number)
        for key in group.makes:
            self.deliver(key, env[key])
            if keep_graph and key in self.delivered:
                self.servings[key] = 0

    def _cell(self, program: Program, key: Key, keep_graph: bool) -> torch.Tensor:
        """Return a value that another group makes."""
        if key not in self.delivered:
            self._run(program, program.owner[key], keep_graph)
        return checked_delivery(self.name, self.delivered[key])
