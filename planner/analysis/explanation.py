"""`Explanation`: what a plan does in one unit, and what else it could do. Pure data.

Made by `planner.analysis.explain`, printed by `planner explain`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.documents.codec import plain
from planner.graph.fate import GivenUp, Kept


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another choice for the unit, with everything else as planned.

    Attributes:
        choice: in words.
        peak_bytes: predicted peak of the step.
        overhead_ratio: predicted overhead of the step.
    """

    choice: str
    peak_bytes: int
    overhead_ratio: float


@dataclass(frozen=True, slots=True)
class OtherBudget:
    """What a search within another budget does in the unit.

    Attributes:
        name: in words.
        budget_bytes: the budget.
        peak_bytes, overhead_ratio: predicted for the step; None where no plan fits.
        given_up_bytes: what the unit gives up then.
    """

    name: str
    budget_bytes: int
    peak_bytes: int | None
    overhead_ratio: float | None
    given_up_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a plan does in one unit.

    Attributes:
        unit: its name; empty for the root.
        kind: its class name.
        calls: how often it is called in one call of the model.
        saved_bytes: what the plain step saves of the values that it makes.
        given_up_bytes: what of it the plan gives up.
        segments: labels of the segments that cover some of it.
        given_up: the values given up, with what keeping each would do.
        kept: the values kept within segments, with what giving up each would do.
        untouched: (op address within the unit, bytes) of what is saved outside any segment.
        alternatives: other choices for the whole unit.
        budgets: what other budgets would do.
    """

    unit: str
    kind: str
    calls: int
    saved_bytes: int
    given_up_bytes: int
    segments: tuple[str, ...]
    given_up: tuple[GivenUp, ...]
    kept: tuple[Kept, ...]
    untouched: tuple[tuple[str, int], ...]
    alternatives: tuple[Alternative, ...]
    budgets: tuple[OtherBudget, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON-ready facts, in a fixed order."""
        return plain(self)

    def __str__(self) -> str:
        from planner.analysis.explanation_text import explanation_text

        return explanation_text(self)
