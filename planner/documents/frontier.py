"""`Frontier`: the least overhead over the budget, and where it bends.

Pure data. Made by `planner.sweep`, shown by `planner sweep`, reports and notebooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.documents.document import cell
from planner.units import format_bytes


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The cheapest plan found within one budget.

    Attributes:
        budget_bytes: the budget.
        peak_bytes: predicted peak of the plan, at most the budget.
        overhead_ratio: predicted added time over the plain step's time.
        segments: number of segments of the plan.
    """

    budget_bytes: int
    peak_bytes: int
    overhead_ratio: float
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Baseline:
    """Peak and overhead of a manual placement of checkpoints.

    Attributes:
        name: ``plain``, ``every block``, ``best k of n``, ``uniform segments`` or ``sqrt``.
        setting: the number behind it, e.g. ``k=3 of 12``; may be empty.
        peak_bytes: its predicted peak.
        overhead_ratio: its predicted added time over the plain step's time.
        planned_overhead_ratio: the same of the cheapest plan with no higher peak; None where none
            was found.
    """

    name: str
    setting: str
    peak_bytes: int
    overhead_ratio: float
    planned_overhead_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the frontier bends most.

    Attributes:
        peak_bytes: the peak at the bend.
        overhead_ratio: the overhead at the bend.
        below_per_mib: overhead added by each MiB less below it, on average to the floor.
        above_per_mib: overhead added by each MiB less above it, on average from the plain peak.
    """

    peak_bytes: int
    overhead_ratio: float
    below_per_mib: float
    above_per_mib: float

    @property
    def times_steeper(self) -> float:
        """Slope below the knee over the slope above it."""
        return self.below_per_mib / self.above_per_mib if self.above_per_mib > 0 else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Frontier:
    """Least overhead over budget for one training step.

    Attributes:
        model_class: class name of the model.
        plain_peak_bytes: most live bytes of the plain step.
        floor_bytes: the smallest peak that was found reachable.
        step_time_ns: time of the plain step.
        knee: where it bends most, or None if it hardly bends.
        points: by budget, smallest first; the overhead never rises.
        baselines: manual placements, for comparison.
    """

    model_class: str
    plain_peak_bytes: int
    floor_bytes: int
    step_time_ns: int
    knee: Knee | None = None
    points: tuple[FrontierPoint, ...]
    baselines: tuple[Baseline, ...] = ()

    def at(self, budget_bytes: int) -> FrontierPoint | None:
        """Return the cheapest of the points whose peak is within a budget, or None."""
        fit = [point for point in self.points if point.peak_bytes <= budget_bytes]
        return min(fit, key=lambda p: (p.overhead_ratio, p.peak_bytes), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the frontier as JSON-ready facts, in a fixed order."""
        from planner.documents.codec import plain

        return plain(self)

    def __repr__(self) -> str:
        low, high = map(format_bytes, (self.floor_bytes, self.plain_peak_bytes))
        return f"<Frontier of {self.model_class}: {len(self.points)} budgets, {low} to {high}>"

    def __str__(self) -> str:
        from planner.documents.printing.frontier import frontier_text

        return frontier_text(self)

    def _repr_html_(self) -> str | None:
        return cell(self)
