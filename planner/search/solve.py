"""`search` and `floor`: choose an algorithm, let the simulator judge, say what was proved."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Literal, get_args

from planner.documents.plan import Exclusion, Pins, Status
from planner.errors import InfeasibleBudgetError, PlannerError
from planner.graph.model import Graph
from planner.graph.span import IllegalSpanError, Span
from planner.search.baselines import placements
from planner.search.chain.blocks import split
from planner.search.chain.bound import LowerBound
from planner.search.chain.dynamic_program import ChainResult
from planner.search.chain.menu import Menu
from planner.search.chain.milp import solve_milp
from planner.search.holders import holders
from planner.search.pins import Wishes, wishes
from planner.search.pool import Candidate, Pool, first_fit
from planner.search.result import SearchResult

Method = Literal["auto", "dp", "milp"]
METHODS: tuple[Method, ...] = get_args(Method)
_RUNGS = 12
_PREDICTION = 0.005
"""The simulator agrees when its peak is within so much of the predicted one."""
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


def check_method(method: str) -> None:
    """Raise unless a search is called so.

    Raises:
        PlannerError: none is.
    """
    if method not in METHODS:
        raise PlannerError(
            f"unknown search method {method!r}",
            numbers=f"search={method!r}; {len(METHODS)} have names: {', '.join(METHODS)}",
            cause="a misspelt name, or the search that measures steps, which is no name",
            fix="use one of " + ", ".join(METHODS) + ", or planner.Measured(trials=50)",
        )


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
    """Everything known about one graph under one set of wishes."""

    def __init__(self, graph: Graph, wanted: Wishes) -> None:
        self.graph = graph
        self.wanted = wanted
        self.pool = Pool(graph)
        self.menu = Menu(graph, split(graph, wanted), wanted)
        self.chain = self.menu.chain()
        edges = self.menu.edges
        self.bound = LowerBound(graph, (edges[0], edges[-1]), wanted)
        if not wanted.forced:
            self.pool.add_plain()
        self.lowest_target = self.chain.lowest()
        trusted = self._climb()
        if wanted.plain() and not trusted:
            self._try_by_hand()
        self.floor: Candidate = self.pool.lowest()

    def search(self, budget_bytes: int, method: Method) -> SearchResult:
        """Return the best plan within a budget."""
        if budget_bytes < self.floor.peak_bytes:
            found = self.steady_floor
            if budget_bytes < found.peak_bytes:
                raise InfeasibleBudgetError(
                    budget_bytes=budget_bytes,
                    min_peak_bytes=found.peak_bytes,
                    holders=holders(self.graph, found.spans),
                )
        else:
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

    @cached_property
    def steady_floor(self) -> Candidate:
        """The lowest peak found when all ops take the same time.

        Measured times differ from profile to profile and may lead to another floor each time; a
        floor that is named in an error must be there again when it is asked for.
        """
        profile = self.graph.profile
        ops = tuple(replace(op, time_ns=_STEADY_OP_NS) for op in profile.ops)
        steady = _remembered(Graph.of(replace(profile, ops=ops)), self.wanted).floor
        return self.pool.add(steady.spans, steady.solver) or self.floor

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
                asked = first_fit(mine, self.propose, "dp", budget_bytes)
        best = mine.best(budget_bytes)
        assert best is not None, "the floor fits every budget that gets here"
        return best if asked is None or best.overhead_ns < asked.overhead_ns else asked

    def _climb(self) -> bool:
        """Fill the pool from a ladder of budgets between the floor and the plain peak.

        Where the simulator agrees with what the algorithm predicts, there is no need to; returns
        whether it does.
        """
        low, high = self.lowest_target, int(self.graph.plain_live.max(initial=0))
        agree = [self._adds(low), self._adds((low + high) // 2)]
        if not all(agree):
            rungs = _RUNGS * min(2, len(self.graph.root_calls))
            for rung in range(1, rungs):
                self._adds(low + (high - low) * rung // rungs)
            self._descend()
        return all(agree)

    def _try_by_hand(self) -> None:
        """Add what people place by hand: it does better here and there where predictions miss."""
        several_calls = len(self.graph.root_calls) > 1
        for name, _, make in placements(self.graph):
            if name != "plain" and (several_calls or name != "best k of n"):
                with suppress(IllegalSpanError):  # the engine cannot stop between some blocks
                    self.pool.add(make(), name)

    def _descend(self) -> None:
        """Look for a lower floor where the algorithm mispredicts: halve towards its own floor."""
        low = self.lowest_target
        for _ in range(_RUNGS):
            high = self.pool.lowest().peak_bytes
            if high - low <= max(1, high // 1000):
                return
            middle = (low + high) // 2
            if first_fit(self.pool, self.propose, "dp", middle, rounds=4) is None:
                low = middle

    def _adds(self, target_bytes: int) -> bool:
        """Add what is predicted to fit; return whether the simulated peak is as predicted."""
        result = self.chain.solve(target_bytes)
        found = None if result is None else self.pool.add(self._spans(result) or (), "dp")
        if result is None or found is None:
            return False
        off = abs(found.peak_bytes - result.peak_bytes(self.chain.top_bytes))
        return off <= _PREDICTION * found.peak_bytes

    def propose(self, budget_bytes: int) -> tuple[Span, ...] | None:
        """Return spans that the dynamic program predicts to fit; None where it finds none."""
        return self._spans(self.chain.solve(budget_bytes))

    def _propose_by_milp(self, budget_bytes: int) -> tuple[Span, ...] | None:
        return self._spans(solve_milp(self.chain, budget_bytes))

    def _spans(self, result: ChainResult | None) -> tuple[Span, ...] | None:
        if result is None:
            return None
        return tuple(span for option in result.options for span in self.menu.spans(option))


def planner_of(graph: Graph, pins: Pins, exclusions: Iterable[Exclusion]) -> GraphPlanner:
    """The planner of a graph; what it knows does not depend on the budgets asked before."""
    return _remembered(graph, wishes(graph, pins, exclusions))


@lru_cache(maxsize=4)
def _remembered(graph: Graph, wanted: Wishes) -> GraphPlanner:
    return GraphPlanner(graph, wanted)
