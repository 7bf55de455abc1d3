"""What `planner batch` prints: every batch size, and which pays. Pure text."""

from __future__ import annotations

from planner.documents.printing.grid import grid, printable
from planner.planning.batch.choice import BatchChoice, BatchRow
from planner.units import format_bytes, format_percent

CLOSE = 0.02
"""Throughputs nearer to each other than this are the same, as far as a few steps can tell."""


def batch_text(choice: BatchChoice) -> str:
    """Return the table of batch sizes and the verdict."""
    budget = format_bytes(choice.budget_bytes)
    title = f"Batch sizes of {choice.model_class} within {budget}"
    head = ("batch", "plain peak", "peak", "overhead", "samples/s", "measured", "measured peak")
    rows = [_row(row, choice) for row in choice.rows]
    return "\n".join([printable(title), "", *grid(head, rows), "", verdict(choice)])


def _row(row: BatchRow, choice: BatchChoice) -> tuple[str, ...]:
    name = f"{row.batch_size} *" if row == choice.best else str(row.batch_size)
    plain = format_bytes(row.plain_peak_bytes)
    if row.peak_bytes is None or row.overhead_ratio is None:
        return (name, plain, "no plan fits", "", "", "", "")
    return (
        name,
        plain,
        format_bytes(row.peak_bytes),
        "plain" if row.is_plain else format_percent(row.overhead_ratio),
        _rate(row.samples_per_second),
        _rate(row.measured_samples_per_second),
        "" if row.measured_peak_bytes is None else format_bytes(row.measured_peak_bytes),
    )


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"


def verdict(choice: BatchChoice) -> str:
    """Return in a sentence which batch size to use, and whether a larger one pays."""
    best, plain = choice.best, choice.largest_plain
    mine = best.measured_samples_per_second or 0.0
    text = f"Use a batch of {best.batch_size}: {_rate(mine)} samples/s measured"
    if plain is None:
        return f"{text}. Without a plan no batch fits."
    other = plain.measured_samples_per_second
    if best.batch_size <= plain.batch_size:
        return f"{text}, with nothing recomputed. A bigger batch does not pay."
    if not other:
        return f"{text}. The largest batch without a plan is {plain.batch_size}."
    gain = mine / other - 1
    against = f"{_rate(other)} with the largest plain batch of {plain.batch_size}"
    if gain < CLOSE:
        return f"{text}, {against}: too near to tell. A bigger batch hardly pays."
    return f"{text}, {against} ({format_percent(gain)} more)."
