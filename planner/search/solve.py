"""`search` and `floor`: choose an algorithm, let the simulator judge, say what was proved."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from planner.documents import Exclusion, Pins
from planner.documents.plan import Status
from planner.errors import InfeasibleBudgetError
from planner.graph.model import Graph
from planner.graph.span import Span
from planner.search.chain.blocks import split
from planner.search.chain.bound import LowerBound
from planner.search.chain.menu import Menu
from planner.search.chain.milp import solve_milp
from planner.search.holders import holders
from planner.search.ladder import Ladder
from planner.search.method import Method, check_method
from planner.search.pins import Wishes, wishes
from planner.search.pool import Candidate, first_fit
from planner.search.result import SearchResult

_STEADY_OP_NS = 10_000
_ROUNDING = 1e-3
"""A gap below what measured op times can tell apart; counts as none."""


def search(
    graph: Graph,
    budget_bytes: int,
    *,
    method: Method = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Iterable[Exclusion] = (),
) -> SearchResult:
    """Return the cheapest spans whose simulated peak is within the budget.

    Args:
        graph: the step.
        budget_bytes: most live bytes allowed.
        method: `dp`, `milp` or `auto`.
        pins: units to save or to recompute.
        exclusions: units that never run again, besides those that the profile lists.

    Raises:
        InfeasibleBudgetError: no plan was found within the budget.
        UnknownUnitError: a pin names no unit.
        PlannerError: the method is unknown, or pins contradict each other.
    """
    check_method(method)
    planner = planner_of(graph, pins, exclusions)
    return planner.search(budget_bytes, method)


def floor(
    graph: Graph,
    *,
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Iterable[Exclusion] = (),
) -> tuple[tuple[Span, ...], int]:
    """Return the spans with the smallest simulated peak that was found, and that peak in bytes."""
    lowest = planner_of(graph, pins, exclusions).floor
    return lowest.spans, lowest.peak_bytes


class GraphPlanner:
    """Everything known about one graph under one set of wishes.

    Attributes:
        ladder: the candidates found with the profile's times.
        floor: the lowest peak, found with equal times (see `_lowest`).
    """

    def __init__(self, graph: Graph, wished: Wishes) -> None:
        self.graph = graph
        self.wishes = wished
        self.ladder = Ladder(graph, Menu(graph, split(graph, wished), wished))
        self.pool = self.ladder.pool
        edges = self.ladder.menu.edges
        self.bound = LowerBound(graph, (edges[0], edges[-1]), wished)
        self.floor = self._lowest()

    def _lowest(self) -> Candidate:
        """The lowest peak found when all ops take the same time.

        Measured times differ from profile to profile and may lead to another floor each time. A
        floor that is named must be there again when it is asked for: so it depends on memory alone,
        and is among the candidates for every budget that is not below it.
        """
        op_ns = np.full(len(self.graph.profile.ops), _STEADY_OP_NS, dtype=np.int64)
        blocks = split(self.graph, self.wishes, op_ns)
        menu = Menu(self.graph, blocks, self.wishes, op_ns, self.ladder.menu.shaper, coarse=True)
        lowest = Ladder(self.graph, menu).pool.lowest()
        self.pool.seen.setdefault(lowest.spans, lowest)
        return lowest

    def search(self, budget_bytes: int, method: Method) -> SearchResult:
        """Return the best plan within a budget."""
        if budget_bytes < self.floor.peak_bytes:
            raise InfeasibleBudgetError(
                budget_bytes=budget_bytes,
                min_peak_bytes=self.floor.peak_bytes,
                holders=holders(self.graph, self.floor.spans),
            )
        found = self._best(budget_bytes, method)
        status, gap = self._proof(found, budget_bytes)
        return SearchResult(
            found.spans,
            found.peak_bytes,
            found.overhead_ns,
            status,
            gap,
            found.solver,
            self.floor.peak_bytes,
        )

    def _proof(self, found: Candidate, budget_bytes: int) -> tuple[Status, float | None]:
        """What is known about how good a plan is: its status and gap."""
        if not found.spans:
            return "empty", 0.0
        least = self.bound.least_overhead_ns(budget_bytes)
        if least is None:
            return "feasible", None
        gap = max(0.0, (found.overhead_ns - least) / max(1, found.overhead_ns))
        return ("optimal", 0.0) if gap <= _ROUNDING else ("feasible", round(gap, 4))

    def _best(self, budget_bytes: int, method: Method) -> Candidate:
        mine = self.pool.copy()
        plain = mine.seen.get(())
        asked = None
        if plain is None or plain.peak_bytes > budget_bytes:
            if method == "milp":
                asked = first_fit(mine, self._propose_by_milp, "milp", budget_bytes, rounds=2)
            else:
                asked = first_fit(mine, self.ladder.propose, "dp", budget_bytes)
        best = mine.best(budget_bytes)
        assert best is not None, "the floor fits every budget that gets here"
        return best if asked is None or best.overhead_ns < asked.overhead_ns else asked

    def _propose_by_milp(self, budget_bytes: int) -> tuple[Span, ...] | None:
        return self.ladder.spans(solve_milp(self.ladder.chain, budget_bytes))


def planner_of(graph: Graph, pins: Pins, exclusions: Iterable[Exclusion]) -> GraphPlanner:
    """The planner of a graph; what it knows does not depend on the budgets asked before."""
    return _remembered(graph, wishes(graph, pins, exclusions))


@lru_cache(maxsize=4)
def _remembered(graph: Graph, wished: Wishes) -> GraphPlanner:
    return GraphPlanner(graph, wished)
