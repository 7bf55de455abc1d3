"""`Plan`: which segments of a step are recomputed, and what they keep.

Written by the search, checked in by the user, read by the applier; no torch here. An op address
is ``unit/op/ordinal`` (``transformer.h.0.mlp.act/mul.Tensor/2``); the root unit is written ``.``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from planner.documents.document import Document, Fault
from planner.documents.fields import SCHEMA_VERSION, Depth, Index, Positive, Version, added
from planner.documents.step import CustomOp, Exclusion, StepInfo
from planner.units import format_bytes

Edge = Literal["enter", "exit"]
Runtime = Literal["replay", "checkpoint"]
Status = Literal["optimal", "feasible", "empty", "manual"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A point in forward: where a unit's call begins or ends.

    Attributes:
        unit: qualified name; empty for the root.
        call: the k-th call of the unit within its root call; -1 for every call.
        edge: ``enter`` or ``exit``.
    """

    unit: str
    call: Index
    edge: Edge


@dataclass(frozen=True, slots=True)
class Cut:
    """A point that splits a segment's replay into parts replayed on demand.

    Attributes:
        at: address of the op before which the split stands.
        depth: 1 cuts the segment into parts, 2 cuts parts, and so on. Before the parts, a first
            run makes the values that cross the cuts. A cut of depth -1, -2, ... is one of depth
            1, 2, ... where that run makes the part before the cut whole, so that it need not run
            again.
    """

    at: str
    depth: Depth


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive ops whose saved tensors are dropped in forward and recomputed in backward.

    Attributes:
        start: where it opens.
        end: where it closes.
        runtime: ``replay``, or ``checkpoint`` for torch's own recomputation.
        keep: addresses of ops whose outputs stay in memory.
        cuts: splits of the replay.
        saved_bytes: what the plain step saves inside.
        kept_bytes: what of it stays in memory.
        recompute_ns: time of the replay.
        replayed_ops: number of ops replayed.
    """

    start: Boundary
    end: Boundary
    runtime: Runtime = "replay"
    keep: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
    saved_bytes: int = 0
    kept_bytes: int = 0
    recompute_ns: int = 0
    replayed_ops: int = 0

    @property
    def unit(self) -> str:
        """The innermost unit that holds both ends; empty for the root."""
        ends = zip(self.start.unit.split("."), self.end.unit.split("."), strict=False)
        return ".".join(start for start, end in takewhile(lambda pair: pair[0] == pair[1], ends))


@dataclass(frozen=True, slots=True)
class Pins:
    """The user's own choices, kept when planning again.

    Attributes:
        save: units that always keep their saved tensors.
        recompute: units that always recompute them.
        never: ops that are never replayed, as ``lib::op``.
    """

    save: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    never: tuple[str, ...] = added(())

    @classmethod
    def of(cls, save: Sequence[str], recompute: Sequence[str], never: Sequence[str] = ()) -> Pins:
        """Return pins as users give them: several texts, or a single one."""
        one_or_more = (save, recompute, never)
        return cls(*((given,) if isinstance(given, str) else tuple(given) for given in one_or_more))


@dataclass(frozen=True, slots=True)
class UnitPrint:
    """The structure of one unit, or of several alike, so that a stale plan can name what changed.

    Attributes:
        units: qualified name; numbers in it written ``*`` where units are alike.
        count: how many units of that name there are.
        fingerprint: hash of the unit's own content.
    """

    units: str
    count: Positive
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Document):
    """A recomputation plan for one model and one training step.

    Attributes:
        model_class: class name of the model.
        fingerprint: hash of the model's structure.
        step: the step it was made for.
        budget_bytes: most live bytes that were allowed.
        predicted_peak_bytes: most live bytes under the plan, by simulation.
        predicted_overhead_ratio: recompute time over the plain step's time.
        plain_peak_bytes: most live bytes of the plain step.
        floor_bytes: smallest peak that was found, where known.
        solver: which search found it.
        status: ``optimal``, ``feasible``, ``empty`` (nothing to recompute) or ``manual``.
        gap: how far from the proven best the overhead may be, as a ratio; None if unknown.
        measured_peak_bytes: most live bytes under the plan, measured; None if never run.
        segments: in forward order.
        exclusions: units left out, with reasons.
        custom_ops: ops outside aten, and whether replays may run them.
        pins: the user's own choices.
        notes: the user's remarks.
        units: the model's structure, unit by unit; may be empty.
        schema_version: version of the file format.
    """

    KIND = "planner.plan"

    schema_version: Version = SCHEMA_VERSION
    model_class: str
    fingerprint: str
    step: StepInfo
    budget_bytes: int
    predicted_peak_bytes: int
    predicted_overhead_ratio: float
    plain_peak_bytes: int
    floor_bytes: int | None = None
    solver: str
    status: Status
    gap: float | None = None
    measured_peak_bytes: int | None = None
    segments: tuple[Segment, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    custom_ops: tuple[CustomOp, ...] = added(())
    pins: Pins = Pins()
    notes: tuple[str, ...] = ()
    units: tuple[UnitPrint, ...] = ()

    def faults(self) -> Iterator[Fault]:
        """Yield cuts of depth 0, which is none."""
        for i, segment in enumerate(self.segments):
            for j, cut in enumerate(segment.cuts):
                if not cut.depth:
                    yield Fault(f"segments[{i}].cuts[{j}].depth", 0, "a depth other than 0")

    def __repr__(self) -> str:
        segments = f"{len(self.segments)} segment{'s' * (len(self.segments) != 1)}"
        peak, budget = map(format_bytes, (self.predicted_peak_bytes, self.budget_bytes))
        return f"<Plan for {self.model_class}: {segments}, peak {peak}, budget {budget}>"

    def __str__(self) -> str:
        from planner.documents.printing.table import plan_table

        return plan_table(self)
