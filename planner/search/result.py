"""`SearchResult`: what a search hands back."""

from __future__ import annotations

from dataclasses import dataclass

from planner.documents.plan import Status
from planner.graph.span import Span


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The cheapest spans found within a budget.

    Attributes:
        spans: what to recompute, in forward order.
        peak_bytes: the simulated peak under them.
        overhead_ns: the time they add to a step.
        status: `empty` (the plain step fits), `optimal` (proved for the graph and the cost
            model) or `feasible`.
        gap: (overhead - lower bound) / overhead; None where no bound is known.
        solver: the search that found them.
        floor_bytes: the smallest peak that was found reachable.
    """

    spans: tuple[Span, ...]
    peak_bytes: int
    overhead_ns: int
    status: Status
    gap: float | None
    solver: str
    floor_bytes: int
