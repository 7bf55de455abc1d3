"""Candidates that passed the simulator, and the ladder of budgets that fills them.

The arbiter: whatever an algorithm predicts, only a simulated peak counts. The ladder does not
depend on the budget asked for, so that a larger budget never sees fewer candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.graph.model import Graph
from planner.graph.simulate import simulate
from planner.graph.span import IllegalSpanError, Span


@dataclass(frozen=True, slots=True)
class Candidate:
    """Spans with their simulated peak and overhead, and the algorithm that proposed them."""

    spans: tuple[Span, ...]
    peak_bytes: int
    overhead_ns: int
    solver: str

    @property
    def rank(self) -> tuple[int, int, int]:
        """Cheaper first, then lower peak, then fewer spans."""
        return self.overhead_ns, self.peak_bytes, len(self.spans)


class Pool:
    """All candidates seen for one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.seen: dict[tuple[Span, ...], Candidate | None] = {}

    def add(self, spans: tuple[Span, ...], solver: str) -> Candidate | None:
        """Simulate spans and keep them; None when the engine could not run them."""
        if spans not in self.seen:
            self.seen[spans] = self._simulated(spans, solver)
        return self.seen[spans]

    def best(self, budget_bytes: int) -> Candidate | None:
        """Return the cheapest candidate within the budget."""
        fit = [c for c in self.seen.values() if c is not None and c.peak_bytes <= budget_bytes]
        return min(fit, key=lambda c: c.rank, default=None)

    def lowest(self) -> Candidate:
        """Return the candidate with the lowest peak."""
        known = [c for c in self.seen.values() if c is not None]
        return min(known, key=lambda c: (c.peak_bytes, c.rank))

    def _simulated(self, spans: tuple[Span, ...], solver: str) -> Candidate | None:
        try:
            result = simulate(self.graph, spans)
        except IllegalSpanError:
            return None
        return Candidate(spans, result.peak_bytes, result.overhead_ns, solver)


Propose = Callable[[int], "tuple[Span, ...] | None"]


def settle(pool: Pool, propose: Propose, solver: str, budget_bytes: int, rounds: int = 8) -> None:
    """Ask an algorithm for a plan and tighten its budget until the simulated peak fits.

    Args:
        pool: where candidates go.
        propose: returns spans predicted to fit a budget, or None.
        solver: its name.
        budget_bytes: the true budget.
        rounds: most attempts.
    """
    target, low = budget_bytes, 0
    for _ in range(rounds):
        spans = propose(target)
        candidate = None if spans is None else pool.add(spans, solver)
        if spans is None:
            low = max(low, target)
        elif candidate is not None and candidate.peak_bytes <= budget_bytes:
            return
        over = candidate.peak_bytes - budget_bytes if candidate is not None else 0
        step = max(over, 1) if spans is not None else 0
        target = target - step if step else (target + budget_bytes) // 2
        if target <= low:
            return
