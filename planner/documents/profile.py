"""`Profile`: what one plain training step did, as integers.

The time axis is the list of ops that make or write memory, over forward, backward and optimizer.
"Position i" is the moment just before op i. Only forward ops carry dataflow; backward ops carry
name, time and phase. Written by the profiler, read by the graph room; no torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from planner.documents.step import SCHEMA_VERSION, Exclusion, StepInfo, TensorSpec

__all__ = [
    "CATEGORIES",
    "PHASES",
    "Exclusion",
    "Op",
    "Profile",
    "SavedTensor",
    "StepInfo",
    "Storage",
    "TensorSpec",
    "UnitCall",
    "Value",
]

PHASES = ("forward", "backward", "other")
CATEGORIES = ("parameter", "buffer", "gradient", "optimizer", "input", "activation")


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
    parent: int
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
    unit: int
    phase: str
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
    op: int


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
    category: str
    birth: int
    death: int
    natural_death: int


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
    unpacked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
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
        schema_version: version of the file format.
    """

    model_class: str
    fingerprint: str
    step: StepInfo
    units: tuple[UnitCall, ...]
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    saved: tuple[SavedTensor, ...]
    plain_peak_bytes: int
    step_time_ns: int
    forward_time_ns: int
    excluded: tuple[Exclusion, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Return the profile as JSON text, the same text for the same profile."""
        from planner.documents.profile_codec import profile_to_json

        return profile_to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Read a profile from JSON text; raises `DocumentError` naming the field at fault."""
        from planner.documents.profile_codec import profile_from_json

        return profile_from_json(text)

    def save(self, path: str | PathLike[str], force: bool = False) -> None:
        """Write the profile; an existing file stays unless ``force``.

        Raises:
            PlanFileExistsError: the file exists.
            DocumentError: it cannot be written.
        """
        from planner.documents.files import write_document

        write_document(path, self.to_json(), force=force)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Profile:
        """Read a profile from a file; raises `DocumentError` naming the field at fault."""
        from planner.documents.files import read_document
        from planner.documents.profile_codec import profile_from_json

        return profile_from_json(read_document(path), str(path))

    def __str__(self) -> str:
        from planner.documents.printing.table import profile_table

        return profile_table(self)
