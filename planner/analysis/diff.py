"""What differs between two plans, by meaning: which units changed fate, then the numbers.

`compare` is pure and its result is ordered, so that the text made of it is stable. Called by
`planner diff`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.documents.plan import Plan, Segment
from planner.documents.step import StepInfo

Shown = int | float | str | None

NUMBERS = (
    "budget_bytes",
    "predicted_peak_bytes",
    "measured_peak_bytes",
    "predicted_overhead_ratio",
    "plain_peak_bytes",
    "floor_bytes",
    "gap",
)
PROVENANCE = ("model_class", "fingerprint", "solver", "status", "schema_version")


@dataclass(frozen=True, slots=True)
class Fate:
    """What a plan does in one unit.

    Attributes:
        segments: the segments whose innermost common unit it is, in forward order.
    """

    segments: tuple[Segment, ...]

    @property
    def given_up_bytes(self) -> int:
        """What is not kept of what the plain step saves there."""
        return sum(max(0, s.saved_bytes - s.kept_bytes) for s in self.segments)

    @property
    def recompute_ns(self) -> int:
        """Time of the replays there."""
        return sum(s.recompute_ns for s in self.segments)

    @property
    def choices(self) -> tuple[Segment, ...]:
        """The segments without their times, which are measured and never quite repeat."""
        return tuple(replace(s, recompute_ns=0) for s in self.segments)


@dataclass(frozen=True, slots=True)
class UnitChange:
    """A unit that the two plans treat differently.

    Attributes:
        unit: its name; empty for the root.
        before, after: what each plan does there; None where no segment is its own.
        around: where a plan has None, the nearest unit around it of which that plan recomputes
            something, perhaps this unit too; None when there is none.
    """

    unit: str
    before: Fate | None
    after: Fate | None
    around: str | None = None


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of the plan with its two values."""

    field: str
    before: Shown
    after: Shown


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """How plan `after` differs from plan `before`.

    Attributes:
        before, after: the plans.
        units: units that changed fate, in forward order.
        numbers: peaks, budgets and overhead that changed.
        others: everything else that changed: model, step, solver, exclusions, pins, notes, and
            the model's structure unit by unit.
    """

    before: Plan
    after: Plan
    units: tuple[UnitChange, ...]
    numbers: tuple[FieldChange, ...]
    others: tuple[FieldChange, ...]

    @property
    def same(self) -> bool:
        """Whether the two plans are equal in every field."""
        return self.before == self.after

    def __str__(self) -> str:
        from planner.analysis.diff_text import diff_text

        return diff_text(self)


def compare(before: Plan, after: Plan) -> PlanDiff:
    """Return how `after` differs from `before`."""
    return PlanDiff(
        before,
        after,
        _units(before, after),
        _changed(before, after, NUMBERS),
        (
            *_changed(before, after, PROVENANCE),
            *_step(before.step, after.step),
            *_listed(before, after),
            *_structure(before, after),
        ),
    )


def _units(before: Plan, after: Plan) -> tuple[UnitChange, ...]:
    names = {segment.unit for plan in (before, after) for segment in plan.segments}
    before_fates, after_fates = _fates(before, names), _fates(after, names)
    changes = []
    for unit in _in_order(list(before_fates), list(after_fates)):
        old, new = before_fates.get(unit), after_fates.get(unit)
        if old is None:
            changes.append(UnitChange(unit, old, new, _around(unit, before_fates)))
        elif new is None:
            changes.append(UnitChange(unit, old, new, _around(unit, after_fates)))
        elif old.choices != new.choices:
            changes.append(UnitChange(unit, old, new))
    return tuple(changes)


def _fates(plan: Plan, names: set[str]) -> dict[str, Fate]:
    found: dict[str, tuple[Segment, ...]] = {}
    for segment in plan.segments:
        unit = _block(segment.unit, names)
        found[unit] = (*found.get(unit, ()), segment)
    return {unit: Fate(segments) for unit, segments in found.items()}


def _block(unit: str, names: set[str]) -> str:
    """The outermost of `names` around a unit that is one of several layers, else the unit.

    One plan may cut a block in two where the other takes it whole; that is one change.
    """
    numbered = (n for n in _ancestors(unit) if n in names and any(map(str.isdigit, n.split("."))))
    return next(numbered, unit)


def _around(unit: str, fates: dict[str, Fate]) -> str | None:
    return next((n for n in reversed(_ancestors(unit)[:-1]) if n in fates), None)


def _ancestors(unit: str) -> list[str]:
    """The root, the units around a unit, outermost first, and the unit."""
    parts = unit.split(".") if unit else []
    return [".".join(parts[:depth]) for depth in range(len(parts) + 1)]


def _in_order(first: list[str], second: list[str]) -> list[str]:
    """Merge two lists in forward order, keeping the order of each."""
    merged = list(second)
    at = 0
    for name in first:
        if name in merged:
            at = merged.index(name) + 1
        else:
            merged.insert(at, name)
            at += 1
    return merged


def _changed(before: Plan, after: Plan, fields: tuple[str, ...]) -> tuple[FieldChange, ...]:
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in fields)
    return tuple(FieldChange(name, old, new) for name, old, new in pairs if old != new)


def _step(before: StepInfo, after: StepInfo) -> list[FieldChange]:
    old, new = _facts(before), _facts(after)
    names = dict.fromkeys((*old, *new))
    return [
        FieldChange(name, old.get(name), new.get(name))
        for name in names
        if old.get(name) != new.get(name)
    ]


def _facts(step: StepInfo) -> dict[str, Shown]:
    inputs = {f"step {t.path}": f"{list(t.shape)} {t.dtype}" for t in step.inputs}
    others = {
        f"step {name}": getattr(step, name)
        for name in StepInfo.__dataclass_fields__
        if name != "inputs"
    }
    return {**inputs, **{name: _plain(value) for name, value in others.items()}}


def _plain(value: object) -> Shown:
    return value if isinstance(value, (int, float, str)) and value != "" else str(value or "none")


def _listed(before: Plan, after: Plan) -> list[FieldChange]:
    """Return the lines that only one of the plans has, each beside None for the other."""
    found = []
    for name, old, new in zip(_LISTS, _lines(before), _lines(after), strict=True):
        found += [FieldChange(name, line, None) for line in old if line not in new]
        found += [FieldChange(name, None, line) for line in new if line not in old]
    return found


_LISTS = ("exclusions", "custom ops", "pins", "notes")


def _lines(plan: Plan) -> tuple[list[str], ...]:
    pins = [f"save {u or '.'}" for u in plan.pins.save]
    pins += [f"recompute {u or '.'}" for u in plan.pins.recompute]
    pins += [f"never {op}" for op in plan.pins.never]
    excluded = [f"{e.unit or '.'}: {e.reason}" for e in plan.exclusions]
    ops = [f"{op.name} {op.reason}" for op in plan.custom_ops]
    return excluded, ops, pins, list(plan.notes)


def _structure(before: Plan, after: Plan) -> list[FieldChange]:
    """Units of the model itself that were added, removed or changed."""
    old, new = _prints(before), _prints(after)
    return [
        FieldChange(f"structure of {unit or '.'}", old.get(unit), new.get(unit))
        for unit in _in_order(list(old), list(new))
        if old.get(unit) != new.get(unit)
    ]


def _prints(plan: Plan) -> dict[str, str]:
    prints = getattr(plan, "units", ())
    return {p.units: f"{p.fingerprint} ({p.count} of them)" for p in prints}
