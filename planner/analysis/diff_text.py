"""What `planner diff` prints: units that changed fate, then numbers, then the rest. Pure text.

The order and wording depend on nothing but the two plans, so that it can stand in a pull request.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.analysis.diff import Fate, FieldChange, PlanDiff, Shown, UnitChange
from planner.documents.printing.alike import collapse
from planner.documents.printing.grid import facts, grid, printable
from planner.units import format_bytes, format_percent


def diff_text(diff: PlanDiff) -> str:
    """Return the difference of two plans as text."""
    if diff.same:
        return f"The plans for {printable(diff.after.model_class)} are the same."
    if diff.before.model_class != diff.after.model_class:
        parts = [[_two_models(diff)], _numbers(diff)]
    else:
        parts = [[_title(diff)], _units(diff), _numbers(diff), _others(diff)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _two_models(diff: PlanDiff) -> str:
    before, after = diff.before.model_class, diff.after.model_class
    return printable(f"The plans are for different models: {before} before, {after} after")


def _title(diff: PlanDiff) -> str:
    name = printable(diff.after.model_class)
    if diff.units:
        count = len(diff.units)
        return f"Plan for {name}: {count} unit{'s' * (count != 1)} changed fate"
    same = "the same units are recomputed in the same way"
    if diff.numbers or diff.others:
        return f"Plan for {name}: {same}; other fields differ"
    return f"Plan for {name}: {same}; only measured times differ"


def _units(diff: PlanDiff) -> list[str]:
    rows = collapse(_row(change) for change in diff.units)
    return grid(("unit", "now", "gives up", "replayed"), rows) if rows else []


def _row(change: UnitChange) -> tuple[str, ...]:
    old, new = change.before, change.after
    before = old.given_up_bytes if old else 0
    after = new.given_up_bytes if new else 0
    return (change.unit or ".", fate(change), _arrow(before, after, format_bytes), _ops(old, new))


def fate(change: UnitChange) -> str:
    """Return in words what became of a unit."""
    old, new = change.before, change.after
    if old is None:
        return "recomputed" if change.around is None else "recomputed apart"
    if new is None:
        return "left alone" if change.around is None else f"part of {change.around or '.'}"
    more = new.given_up_bytes - old.given_up_bytes
    if more:
        return "gives up more" if more > 0 else "gives up less"
    return "recomputed otherwise"


def _ops(old: Fate | None, new: Fate | None) -> str:
    # Numbers of ops, not times: blocks alike stand in one row, and times never repeat.
    counts = [sum(s.replayed_ops for s in f.segments) if f else 0 for f in (old, new)]
    return _arrow(counts[0], counts[1], lambda n: f"{n} ops")


def _numbers(diff: PlanDiff) -> list[str]:
    return facts([(_words(change.field), _values(change)) for change in diff.numbers])


def _others(diff: PlanDiff) -> list[str]:
    return facts([(_words(change.field), _values(change)) for change in diff.others])


def _words(field: str) -> str:
    return field.removesuffix("_bytes").removesuffix("_ratio").replace("_", " ")


def _values(change: FieldChange) -> str:
    old, new = change.before, change.after
    if change.field in ("exclusions", "pins", "notes"):
        return f"added: {new}" if old is None else f"removed: {old}"
    text = f"{_value(change.field, old)} -> {_value(change.field, new)}"
    if isinstance(old, str) or isinstance(new, str) or old is None or new is None:
        return text
    if change.field.endswith("_bytes"):
        return f"{text} ({_signed(new - old, format_bytes)})"
    points = f"{(new - old) * 100:+.1f} points"
    return f"{text} ({points})" if isinstance(new, float) else text


def _value(field: str, value: Shown) -> str:
    if value is None:
        return "none"
    if field.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, float) or field in ("gap", "predicted_overhead_ratio"):
        return format_percent(float(value))
    return str(value)


def _arrow(old: int, new: int, show: Callable[[int], str]) -> str:
    return show(new) if old == new else f"{show(old)} -> {show(new)}"


def _signed(change: float, show: Callable[[int], str]) -> str:
    return ("+" if change > 0 else "-") + show(abs(int(change)))
