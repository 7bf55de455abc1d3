"""`Graph`: a profile made ready for questions. Built once, read by the simulator and the search.

Numbers of ops, values and storages are the profile's own. "Position p" is the moment just before
op p.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.documents.profile import Profile, SavedTensor, Value
from planner.graph.packs import own_packs
from planner.replay.slicing import FlowOp

if TYPE_CHECKING:
    from planner.graph.lives import Effect
    from planner.graph.places import Places
    from planner.graph.span import Span

Ints = np.ndarray[Any, np.dtype[np.int64]]

NO_FLOW: FlowOp[int] = FlowOp((), (), ())
"""The flow of an op that cannot be replayed: what it makes is external to everyone."""

_CACHED_SPANS = 20_000


class Graph:
    """Ops, values and saved tensors of one profile, indexed.

    Attributes:
        profile: the profile it was made from.
        n_ops: number of ops in the whole step.
        forward_stop: position of the first op after the forward began that is not forward.
        legal_positions: sorted positions of the first root call at which a module call is
            entered or left; a span starts and stops there.
        legal: the same as a set.
        root_calls: numbers of the calls of the model within the step.
        packs: for each storage, how often autograd saved it.
        unsaved_deaths: for each storage, the op after which it is freed if nothing saves it.
        workspaces: bytes that each op needs only while it runs: storages that no value shows.
        random_ops: sorted forward ops that draw from a generator.
        births: bytes that the plain step allocates at each op, n_ops + 1 of them.
        plain_live: bytes live during each op of the plain step, n_ops of them.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.n_ops = len(profile.ops)
        self.forward_stop = _forward_stop(profile)
        self.legal_positions = _legal_positions(profile)
        self.legal = frozenset(self.legal_positions)
        self.root_calls = tuple(sorted({unit.root_call for unit in profile.units}))
        self.unsaved_deaths = tuple(min(s.natural_death, s.death) for s in profile.storages)
        self.births, self.plain_live = _plain_live(profile)
        self.workspaces = _workspaces(profile)
        self.random_ops = tuple(i for i, op in enumerate(profile.ops) if op.random)
        self._before, self._after = _neighbour_versions(profile.values)
        self._renewed = _first_strangers(profile.values)
        self._flows = tuple(self._flow(index) for index in range(self.n_ops))
        self._own = own_packs(profile.ops, profile.values, profile.saved)
        self._saved_of, self.packs = _saved_index(profile)
        self._effects: dict[Span, tuple[Effect, ...]] = {}
        self._places: Places | None = None

    @classmethod
    def of(cls, profile: Profile) -> Graph:
        """Return the graph of a profile: the same one again, with all that searches remember."""
        return _graph_of(profile)

    @property
    def places(self) -> Places:
        """Module boundaries and op addresses of this graph."""
        if self._places is None:
            from planner.graph.places import Places

            self._places = Places(self)
        return self._places

    def flow(self, op: int) -> FlowOp[int]:
        """Return what an op reads and makes; nothing for an op that cannot be replayed."""
        return self._flows[op]

    def saved_of(self, value: int) -> list[SavedTensor]:
        """Return the saved tensors that show a value, in the order of packing."""
        return [self.profile.saved[index] for index in self._saved_of.get(value, ())]

    def packed_inside(self, value: int, start: int, stop: int) -> list[SavedTensor]:
        """Return the saved tensors of a value that were packed while ops [start, stop) ran."""
        saved = self.profile.saved
        return [
            saved[index]
            for index in self._saved_of.get(value, ())
            if start <= saved[index].packed_at < stop
            or (saved[index].packed_at == stop and self._own[index])
        ]

    def random_inside(self, start: int, stop: int) -> list[int]:
        """Return the random ops of [start, stop), numbered from `start`."""
        low, high = (bisect_left(self.random_ops, op) for op in (start, stop))
        return [op - start for op in self.random_ops[low:high]]

    def storage_of(self, value: int) -> int:
        """Return the storage that a value is a version of."""
        return self.profile.values[value].storage

    def storage_bytes(self, value: int) -> int:
        """Return the size of a value's storage in bytes."""
        return self.profile.storages[self.profile.values[value].storage].bytes

    def overwritten_at(self, value: int) -> int:
        """Return the op that writes the next version of the value's storage, or -1."""
        after = self._after.get(value)
        return -1 if after is None else self.profile.values[after].op

    def made_inside(self, value: int, start: int, stop: int) -> bool:
        """Return whether replayable ops of [start, stop) made a value, in a storage all theirs."""
        one = self.profile.values[value]
        birth = self.profile.storages[one.storage].birth
        return (
            start <= birth <= one.op < stop
            and self._flows[one.op] is not NO_FLOW
            and one.version < self._renewed.get(one.storage, one.version + 1)
        )

    def outputs(self, op: int) -> tuple[int, ...]:
        """Return what an op made, then what it wrote: the order in which addresses count."""
        flow = self._flows[op]
        if flow is NO_FLOW:
            return self.profile.ops[op].outputs
        return (*flow.makes, *(new for _, new in flow.writes))

    def remembered(self, span: Span) -> tuple[Effect, ...] | None:
        """Return what a span does, if that was derived before."""
        return self._effects.get(span)

    def remember(self, span: Span, effects: tuple[Effect, ...]) -> None:
        """Keep what a span does, forgetting the oldest beyond a bound."""
        if len(self._effects) >= _CACHED_SPANS:
            self._effects.pop(next(iter(self._effects)))
        self._effects[span] = effects

    def networkx(self) -> Any:
        """Return a networkx DiGraph over ``("op", i)`` and ``("value", v)`` nodes.

        An edge leads from a value to the op that reads it and from an op to the value it makes.
        Op nodes carry `name`, `unit` (index of the innermost unit call, -1 outside) and
        `time_ns`, value nodes `bytes`; the unit tree is the graph's own `units` attribute.
        """
        import networkx as nx

        graph = nx.DiGraph(units=self.profile.units)
        for value in range(len(self.profile.values)):
            graph.add_node(("value", value), bytes=self.storage_bytes(value))
        for index, op in enumerate(self.profile.ops):
            graph.add_node(("op", index), name=op.name, unit=op.unit, time_ns=op.time_ns)
            graph.add_edges_from((("value", v), ("op", index)) for v in op.inputs)
            graph.add_edges_from((("op", index), ("value", v)) for v in op.outputs)
        return graph

    def _flow(self, index: int) -> FlowOp[int]:
        op = self.profile.ops[index]
        if op.phase != "forward" or not op.replayable:
            return NO_FLOW
        makes, writes = [], []
        for value in op.outputs:
            old = self._before.get(value)
            if old is not None:
                writes.append((old, value))
            elif self.profile.storages[self.storage_of(value)].birth == index:
                makes.append(value)
            else:
                return NO_FLOW  # it wrote memory whose content nobody knows
        reads = dict.fromkeys((*op.inputs, *(old for old, _ in writes)))
        return FlowOp(tuple(reads), tuple(makes), tuple(writes))


def _forward_stop(profile: Profile) -> int:
    phases = [op.phase for op in profile.ops]
    start = phases.index("forward") if "forward" in phases else 0
    return next((i for i in range(start, len(phases)) if phases[i] != "forward"), len(phases))


def _legal_positions(profile: Profile) -> tuple[int, ...]:
    first = [unit for unit in profile.units if unit.root_call == 0]
    return tuple(sorted({edge for unit in first for edge in (unit.enter, unit.exit)}))


def _plain_live(profile: Profile) -> tuple[Ints, Ints]:
    n_ops = len(profile.ops)
    births = np.zeros(n_ops + 1, dtype=np.int64)
    deaths = np.zeros(n_ops + 2, dtype=np.int64)
    for storage in profile.storages:
        births[max(storage.birth, 0)] += storage.bytes
        deaths[min(storage.death, n_ops) + 1] += storage.bytes
    return births, np.cumsum(births - deaths[:-1])[:n_ops]


def _workspaces(profile: Profile) -> tuple[int, ...]:
    found = [0] * len(profile.ops)
    shown = {value.storage for value in profile.values}
    for number, storage in enumerate(profile.storages):
        if 0 <= storage.birth == storage.death < len(found) and number not in shown:
            found[storage.birth] += storage.bytes
    return tuple(found)


def _first_strangers(values: tuple[Value, ...]) -> dict[int, int]:
    """Return, by storage, the first version that no replayable op made.

    From then on the storage's content is from outside, whoever writes into it.
    """
    first: dict[int, int] = {}
    for value in values:
        if value.op < 0:
            first[value.storage] = min(value.version, first.get(value.storage, value.version))
    return first


def _neighbour_versions(values: tuple[Value, ...]) -> tuple[dict[int, int], dict[int, int]]:
    """Return, by value, the value before and after it in the same storage."""
    order = sorted(range(len(values)), key=lambda v: (values[v].storage, values[v].version))
    pairs = [
        (old, new)
        for old, new in zip(order, order[1:], strict=False)
        if values[old].storage == values[new].storage
    ]
    return {new: old for old, new in pairs}, dict(pairs)


def _saved_index(profile: Profile) -> tuple[dict[int, list[int]], list[int]]:
    """Return the indices of saved tensors by value, and their number by storage."""
    saved_of: dict[int, list[int]] = {}
    packs = [0] * len(profile.storages)
    for index, tensor in enumerate(profile.saved):
        saved_of.setdefault(tensor.value, []).append(index)
        packs[profile.values[tensor.value].storage] += 1
    return saved_of, packs


@lru_cache(maxsize=4)
def _graph_of(profile: Profile) -> Graph:
    return Graph(profile)
