"""`BatchChoice`: which batch size trains fastest within a budget. Pure data.

Made by `planner.best_batch`, printed by `planner batch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.documents.codec import plain
from planner.documents.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One batch size.

    Attributes:
        batch_size: samples in a step.
        plain_peak_bytes: predicted peak of the plain step.
        peak_bytes: predicted peak under the cheapest plan; None where none fits.
        overhead_ratio: predicted added time over the plain step's; None where none fits.
        samples_per_second: predicted; None where none fits.
        measured_peak_bytes: measured peak, or None if it was not run.
        measured_samples_per_second: measured, or None if it was not run.
        extrapolated: whether the prediction comes from the steps of other batch sizes.
    """

    batch_size: int
    plain_peak_bytes: int
    peak_bytes: int | None = None
    overhead_ratio: float | None = None
    samples_per_second: float | None = None
    measured_peak_bytes: int | None = None
    measured_samples_per_second: float | None = None
    extrapolated: bool = False

    @property
    def fits(self) -> bool:
        """Whether a plan, or the plain step, is predicted to fit."""
        return self.peak_bytes is not None

    @property
    def is_plain(self) -> bool:
        """Whether it fits with nothing recomputed."""
        return self.overhead_ratio == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """The batch size with the highest throughput within a budget.

    Attributes:
        model_class: class name of the model.
        budget_bytes: the budget.
        best: the row of the chosen batch size.
        plan: its plan, measured.
        rows: all batch sizes looked at, smallest first.
    """

    model_class: str
    budget_bytes: int
    best: BatchRow
    plan: Plan
    rows: tuple[BatchRow, ...]

    @property
    def batch_size(self) -> int:
        """The chosen batch size."""
        return self.best.batch_size

    @property
    def largest_plain(self) -> BatchRow | None:
        """The largest batch size that fits with nothing recomputed, if any does."""
        plain = [row for row in self.rows if row.is_plain]
        return max(plain, key=lambda row: row.batch_size, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as JSON-ready facts, in a fixed order, without the plan."""
        return {
            "model_class": self.model_class,
            "budget_bytes": self.budget_bytes,
            "batch_size": self.batch_size,
            "rows": [plain(row) for row in self.rows],
        }

    def __str__(self) -> str:
        from planner.planning.batch.choice_text import batch_text

        return batch_text(self)
