"""`Plan`: which segments of a step are recomputed, and what they keep.

Written by the search, checked in by the user, read by the applier; no torch here. An op address
is ``unit/op/ordinal`` (``transformer.h.0.mlp.act/mul.Tensor/2``); the root unit is written ``.``.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from planner.documents.step import SCHEMA_VERSION, Exclusion, StepInfo, TensorSpec

__all__ = [
    "EDGES",
    "RUNTIMES",
    "STATUSES",
    "Boundary",
    "Cut",
    "Exclusion",
    "Pins",
    "Plan",
    "Segment",
    "StepInfo",
    "TensorSpec",
    "UnitPrint",
]

EDGES = ("enter", "exit")
RUNTIMES = ("replay", "checkpoint")
STATUSES = ("optimal", "feasible", "empty", "manual")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A point in forward: where a unit's call begins or ends.

    Attributes:
        unit: qualified name; empty for the root.
        call: the k-th call of the unit within its root call; -1 for every call.
        edge: ``enter`` or ``exit``.
    """

    unit: str
    call: int
    edge: str


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
    depth: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive ops whose saved tensors are given up together.

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
    runtime: str = "replay"
    keep: tuple[str, ...] = ()
    cuts: tuple[Cut, ...] = ()
    saved_bytes: int = 0
    kept_bytes: int = 0
    recompute_ns: int = 0
    replayed_ops: int = 0


@dataclass(frozen=True, slots=True)
class Pins:
    """The user's own wishes, kept when planning again.

    Attributes:
        save: units that always keep their saved tensors.
        recompute: units that always give them up.
    """

    save: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitPrint:
    """The structure of one unit, or of several alike, so that a stale plan can name what changed.

    Attributes:
        units: qualified name; numbers in it written ``*`` where units are alike.
        count: how many units of that name there are.
        fingerprint: hash of the unit's own content.
    """

    units: str
    count: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A recomputation plan for one model and one training step.

    Attributes:
        model_class: class name of the model.
        fingerprint: hash of the model's structure.
        step: the step it was made for.
        budget_bytes: most live bytes that were allowed.
        predicted_peak_bytes: most live bytes under the plan, by simulation.
        predicted_overhead_ratio: recompute time over the plain step's time.
        plain_peak_bytes: most live bytes of the plain step.
        floor_bytes: smallest peak any plan reaches, where known.
        solver: which search found it.
        status: ``optimal``, ``feasible``, ``empty`` (nothing to recompute) or ``manual``.
        gap: how far from the proven best the overhead may be, as a ratio; None if unknown.
        measured_peak_bytes: most live bytes under the plan, measured; None if never run.
        segments: in forward order.
        exclusions: units left out, with reasons.
        pins: the user's wishes.
        notes: the user's remarks.
        units: the model's structure, unit by unit; may be empty.
        schema_version: version of the file format.
    """

    model_class: str
    fingerprint: str
    step: StepInfo
    budget_bytes: int
    predicted_peak_bytes: int
    predicted_overhead_ratio: float
    plain_peak_bytes: int
    solver: str
    status: str
    floor_bytes: int | None = None
    gap: float | None = None
    measured_peak_bytes: int | None = None
    segments: tuple[Segment, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    pins: Pins = Pins()
    notes: tuple[str, ...] = ()
    units: tuple[UnitPrint, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Return the plan as JSON text, the same text for the same plan."""
        from planner.documents.plan_codec import plan_to_json

        return plan_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from JSON text; raises `DocumentError` naming the field at fault."""
        from planner.documents.plan_codec import plan_from_json

        return plan_from_json(text)

    def save(self, path: str | PathLike[str], force: bool = False) -> None:
        """Write the plan; an existing file stays unless ``force``.

        Raises:
            PlanFileExistsError: the file exists.
            DocumentError: it cannot be written.
        """
        from planner.documents.files import write_document

        write_document(path, self.to_json(), force=force)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan from a file; raises `DocumentError` naming the field at fault."""
        from planner.documents.files import read_document
        from planner.documents.plan_codec import plan_from_json

        return plan_from_json(read_document(path), str(path))

    def __str__(self) -> str:
        from planner.documents.printing.table import plan_table

        return plan_table(self)

    def _repr_html_(self) -> str | None:
        from planner.documents.notebook import cell

        return cell(self)
