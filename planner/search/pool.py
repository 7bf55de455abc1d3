"""Candidates that passed the simulator, and the ladder of budgets that fills them.

The arbiter: whatever an algorithm predicts, only a simulated peak counts. The ladder does not
depend on the budget in question, so that a larger budget never sees fewer candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
        """Simulate spans and keep them; None when the engine could not run them.

        The last algorithm that proposes the same spans gives its name.
        """
        known = self.seen.get(spans)
        if spans not in self.seen:
            self.seen[spans] = self._simulated(spans, solver)
        elif known is not None and spans:
            self.seen[spans] = replace(known, solver=solver)
        return self.seen[spans]

    def add_plain(self) -> None:
        """Add the step as it is, with the peak that was measured."""
        peak = self.graph.profile.plain_peak_bytes
        self.seen[()] = Candidate((), peak, 0, "plain")

    def copy(self) -> Pool:
        """Return a pool with the same candidates, to add to."""
        other = Pool(self.graph)
        other.seen = dict(self.seen)
        return other

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


def first_fit(
    pool: Pool, propose: Propose, solver: str, budget_bytes: int, rounds: int = 8
) -> Candidate | None:
    """Ask an algorithm for a plan and tighten its budget until the simulated peak fits.

    Args:
        pool: where candidates go.
        propose: returns spans predicted to fit a budget, or None.
        solver: its name.
        budget_bytes: the true budget.
        rounds: most attempts.

    Returns:
        The first candidate that fits, or None.
    """
    target, infeasible = budget_bytes, -1
    for _ in range(rounds):
        spans = propose(target)
        if spans is None:
            if target >= budget_bytes:
                return None
            infeasible = max(infeasible, target)
            target = (target + budget_bytes) // 2
            continue
        candidate = pool.add(spans, solver)
        if candidate is not None and candidate.peak_bytes <= budget_bytes:
            return candidate
        over = 1 if candidate is None else candidate.peak_bytes - budget_bytes
        target = max(target - over, infeasible + 1)
    return None
