"""What `planner explain` prints: one unit's choices and their prices. Pure text."""

from __future__ import annotations

from planner.analysis.explanation import Explanation, OtherBudget
from planner.documents.printing.alike import collapse
from planner.documents.printing.grid import grid, printable
from planner.units import format_bytes, format_ns, format_percent


def explanation_text(found: Explanation) -> str:
    """Return an explanation as text."""
    parts = [_title(found), _given_up(found), _kept(found), _untouched(found),
             _alternatives(found), _budgets(found)]  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _title(found: Explanation) -> list[str]:
    calls = f", called {found.calls} times" if found.calls != 1 else ""
    saved = format_bytes(found.saved_bytes)
    name = f"{found.unit or '.'} ({found.kind}{calls})"
    title = f"{name}: the plain step saves {saved} of what it makes"
    if not found.given_up_bytes:
        lines = [title + "; the plan keeps it all."]
    else:
        lines = [title + f"; the plan gives up {format_bytes(found.given_up_bytes)}."]
    lines += [f"  in segment {label}" for (label,) in collapse((s,) for s in found.segments)]
    return list(map(printable, lines))


def _given_up(found: Explanation) -> list[str]:
    rows = [
        (
            _inside(g.address, found.unit),
            format_bytes(g.size_bytes),
            format_ns(max(0, g.saves_ns)),
            "" if g.ns_per_mib is None else format_ns(max(0.0, g.ns_per_mib)),
        )
        for g in found.given_up
    ]
    return grid(("given up", "size", "keeping it saves", "per MiB"), rows) if rows else []


def _kept(found: Explanation) -> list[str]:
    lines = [
        f"  {_inside(k.address, found.unit)}  {format_bytes(k.size_bytes)}: {k.why}"
        for k in found.kept
    ]
    return ["  kept in the segment, and why", *map(printable, lines)] if lines else []


def _untouched(found: Explanation) -> list[str]:
    rows = [(_inside(address, found.unit), format_bytes(size)) for address, size in found.untouched]
    return grid(("saved, in no segment", "size"), rows) if rows else []


def _inside(address: str, unit: str) -> str:
    return address.removeprefix(f"{unit}.").removeprefix(f"{unit}/") if unit else address


def _alternatives(found: Explanation) -> list[str]:
    rows = [
        (a.choice, format_bytes(a.peak_bytes), f"{a.overhead_ratio * 100:.2f}%")
        for a in found.alternatives
    ]
    return grid(("choice for this unit", "predicted peak", "overhead"), rows)


def _budgets(found: Explanation) -> list[str]:
    head = ("budget", "size", "predicted peak", "overhead", "given up here")
    return grid(head, [_budget(budget) for budget in found.budgets])


def _budget(budget: OtherBudget) -> tuple[str, ...]:
    size = format_bytes(budget.budget_bytes)
    if budget.peak_bytes is None or budget.overhead_ratio is None:
        return (budget.name, size, "no plan fits", "", "")
    return (
        budget.name,
        size,
        format_bytes(budget.peak_bytes),
        format_percent(budget.overhead_ratio),
        format_bytes(budget.given_up_bytes),
    )
