"""What ``print`` shows of a verification. Pure text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from planner.documents.printing.grid import facts
from planner.documents.printing.table import against_budget
from planner.units import format_bytes, format_percent

if TYPE_CHECKING:
    from planner.verifier.verification import Verification


def verification_table(verification: Verification) -> str:
    """Return a verification as text: passed or failed, and each promise."""
    peak = against_budget(verification.measured_peak_bytes, verification.budget_bytes)
    plain, ratio = verification.plain_peak_bytes, verification.overhead_ratio
    pairs = [
        ("budget", format_bytes(verification.budget_bytes) if verification.budget_bytes else ""),
        ("plain peak", "none: it ran out of memory" if plain is None else format_bytes(plain)),
        ("measured peak", peak),
        ("reserved", _reserved(verification)),
        *_equal(verification),
        ("forward runs", _forward_runs(verification.forward_runs)),
        ("replayed ops", f"{verification.replayed_ops:,}"),
        ("overhead", "" if ratio is None else f"{format_percent(ratio)} of the plain step"),
    ]
    title = f"Verification: {'passed' if verification.ok else 'FAILED'}"
    return "\n".join([title, *facts(pairs)])


def _equal(verification: Verification) -> list[tuple[str, str]]:
    """What was compared: the step's results, or each replay with what it stands for."""
    if verification.compared == "replays":
        plain_ran = verification.plain_peak_bytes is not None
        differ = "differ from each other, so replays are compared" if plain_ran else ""
        return [("plain steps", differ), ("replays", _equality(verification.gradients_equal))]
    return [
        ("gradients", _equality(verification.gradients_equal)),
        ("outputs", _equality(verification.outputs_equal)),
        ("buffers", _equality(verification.buffers_equal)),
    ]


def _reserved(verification: Verification) -> str:
    if verification.reserved_bytes is None:
        return ""
    unused = format_bytes(verification.reserved_bytes - verification.measured_peak_bytes)
    return f"{format_bytes(verification.reserved_bytes)} ({unused} of it unused, in pieces)"


def _equality(equal: bool) -> str:
    return "equal bit for bit" if equal else "DIFFERENT"


def _forward_runs(counts: Mapping[str, int]) -> str:
    often = [f"{unit or '.'} {count} times" for unit, count in counts.items() if count > 1]
    if not often:
        return f"{len(counts):,} units, each once" if counts else ""
    more = f" and {len(often) - 4} more" if len(often) > 4 else ""
    return f"{len(counts):,} units; " + ", ".join(often[:4]) + more
