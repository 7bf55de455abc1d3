"""`Profile`: what one plain training step did, as integers.

The time axis is the list of ops that make or write memory, over forward, backward and optimizer.
"Position i" is the moment just before op i. Only forward ops carry dataflow; backward ops carry
name, time and phase. Written by the profiler, read by the graph room; no torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter, le
from typing import Annotated, Literal

from planner.documents.document import Document, Fault
from planner.documents.fields import SCHEMA_VERSION, TABLE, Index, Version, added
from planner.documents.step import CustomOp, Exclusion, StepInfo
from planner.units import format_bytes, format_ns

Phase = Literal["forward", "backward", "other"]
Category = Literal["parameter", "buffer", "gradient", "optimizer", "input", "activation"]


@dataclass(frozen=True, slots=True)
class UnitCall:
    """One call of a module.

    Attributes:
        name: qualified name; empty for the root.
        call: this is the k-th call of the unit within its root call.
        root_call: which call of the model it belongs to.
        kind: class name of the module.
        parent: index in `Profile.units` of the enclosing call, or -1.
        enter: first op that ran inside.
        exit: one past the last op that ran inside.
    """

    name: str
    call: int
    root_call: int
    kind: str
    parent: Index
    enter: int
    exit: int


@dataclass(frozen=True, slots=True)
class Op:
    """One aten op of the step.

    Attributes:
        name: full name, e.g. ``aten.addmm.default``.
        unit: index of the innermost unit call around it, or -1.
        phase: ``forward``, ``backward`` or ``other`` (loss, optimizer, data).
        inputs: ids of the values it read.
        outputs: ids of the values it made: fresh storages and new versions written.
        time_ns: how long it ran.
        flops: floating-point operations, 0 where unknown.
        replayable: whether running it again on the same inputs gives the same bits.
        random: whether it draws from a generator.
    """

    name: str
    unit: Index
    phase: Phase
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    time_ns: int = 0
    flops: int = 0
    replayable: bool = True
    random: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """One version of one storage.

    Attributes:
        storage: index in `Profile.storages`.
        version: counts writes from 0.
        op: the op that made it, or -1 when it came from outside the step.
    """

    storage: int
    version: int
    op: Index


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of memory and its life.

    One that no value shows, born and dead at the same op, is the workspace of that op's kernel: a
    replay of the op needs it too.

    Attributes:
        bytes: its size.
        category: ``parameter``, ``buffer``, ``gradient``, ``optimizer``, ``input`` or
            ``activation``.
        birth: the op that allocated it, or -1 when it was there before the step.
        death: it is freed after this op; ``len(ops)`` when it outlives the step.
        natural_death: the same if autograd saved nothing; ``len(ops)`` when something else holds
            it to the end of forward.
    """

    bytes: int
    category: Category
    birth: Index
    death: Index
    natural_death: Index


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that autograd packed.

    Attributes:
        value: the value it shows.
        packed_at: position in forward at which it was packed.
        unpacked_at: position of the backward op before which it is first needed; -1 for never.
    """

    value: int
    packed_at: int
    unpacked_at: Index


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profile(Document):
    """One plain training step of one model.

    Attributes:
        model_class: class name of the model.
        fingerprint: hash of the model's structure.
        step: the step that was recorded.
        units: module calls, each after the call around it.
        ops: the time axis.
        values: value ids are indices here.
        storages: storage ids are indices here.
        saved: what autograd packed, in order.
        plain_peak_bytes: most live bytes over the step, measured.
        step_time_ns: time of the whole step.
        forward_time_ns: time of its forward.
        excluded: units that must not be recomputed.
        custom_ops: ops outside aten that forward calls, and whether replays may run them.
        schema_version: version of the file format.
    """

    KIND = "planner.profile"

    schema_version: Version = SCHEMA_VERSION
    model_class: str
    fingerprint: str
    step: StepInfo
    plain_peak_bytes: int
    step_time_ns: int
    forward_time_ns: int
    excluded: tuple[Exclusion, ...] = ()
    custom_ops: tuple[CustomOp, ...] = added(())
    units: Annotated[tuple[UnitCall, ...], TABLE]
    ops: Annotated[tuple[Op, ...], TABLE]
    values: Annotated[tuple[Value, ...], TABLE]
    storages: Annotated[tuple[Storage, ...], TABLE]
    saved: Annotated[tuple[SavedTensor, ...], TABLE]

    def faults(self) -> Iterator[Fault]:
        """Yield row numbers that point past the end, and lives that end before they begin."""
        ops, values = len(self.ops), len(self.values) - 1
        enters, births = [u.enter for u in self.units], [s.birth for s in self.storages]
        parents = range(-1, len(self.units))  # parents come first, so there are no cycles
        yield from _outside("units.parent", self.units, -1, parents)
        yield from _outside("units.enter", self.units, 0, ops)
        yield from _outside("units.exit", self.units, enters, ops)
        yield from _outside("ops.unit", self.ops, -1, len(self.units) - 1)
        yield from _outside("ops.inputs", self.ops, 0, values)
        yield from _outside("ops.outputs", self.ops, 0, values)
        yield from _outside("values.storage", self.values, 0, len(self.storages) - 1)
        yield from _outside("values.op", self.values, -1, ops - 1)
        yield from _outside("storages.birth", self.storages, -1, ops - 1)
        yield from _outside("storages.death", self.storages, births, ops)
        yield from _outside("storages.natural_death", self.storages, births, ops)
        yield from _outside("saved.value", self.saved, 0, values)
        yield from _outside("saved.packed_at", self.saved, 0, ops)
        yield from _outside("saved.unpacked_at", self.saved, -1, ops)

    def __repr__(self) -> str:
        peak, time = format_bytes(self.plain_peak_bytes), format_ns(self.step_time_ns)
        return f"<Profile of {self.model_class}: {len(self.ops):,} ops, peak {peak}, step {time}>"

    def __str__(self) -> str:
        from planner.documents.printing.table import profile_table

        return profile_table(self)


Limit = int | Sequence[int]


def _outside(column: str, rows: Sequence[object], low: Limit, high: Limit) -> Iterator[Fault]:
    """Yield the cells of a column that are not within limits, which may differ from row to row."""
    table, name = column.split(".")
    cells = list(map(attrgetter(name), rows))
    are_lists = bool(cells) and isinstance(cells[0], tuple)  # of row numbers, with limits in common
    numbers = list(chain.from_iterable(cells)) if are_lists else cells
    if all(map(le, _each(low), numbers)) and all(map(le, numbers, _each(high))):
        return  # the usual case, at the speed of C: a profile may have a million cells
    for i, (cell, least, most) in enumerate(zip(cells, _each(low), _each(high), strict=False)):
        for j, number in enumerate(cell if are_lists else (cell,)):
            if not least <= number <= most:
                place = f"{table}.rows[{i}].{name}" + f"[{j}]" * are_lists
                limits = f"an integer from {least} to {most}"
                yield Fault(place, number, limits if least <= most else "none: that list is empty")


def _each(limit: Limit) -> Iterable[int]:
    return repeat(limit) if isinstance(limit, int) else limit
