"""`Ladder`: fills a pool with what the dynamic program proposes for one budget after another."""

from __future__ import annotations

from contextlib import suppress

from planner.graph.model import Graph
from planner.graph.span import IllegalSpanError, Span
from planner.search.baselines import placements
from planner.search.chain.dynamic_program import ChainResult
from planner.search.chain.menu import Menu
from planner.search.pool import Pool, first_fit

_RUNGS = 12
_PREDICTION = 0.005
"""The simulator agrees when its peak is within so much of the predicted one."""


class Ladder:
    """The dynamic program over one menu, and the candidates that it found.

    Args:
        graph: the step.
        menu: the options.

    Attributes:
        pool: the candidates, each judged by the simulator.
        chain: the problem across blocks.
        lowest_target: the smallest budget for which the algorithm finds something.
    """

    def __init__(self, graph: Graph, menu: Menu) -> None:
        self.graph = graph
        self.menu = menu
        self.pool = Pool(graph)
        self.chain = menu.chain()
        self.lowest_target = self.chain.lowest()
        if not menu.wishes.forced:
            self.pool.add_plain()
        trusted = self._climb()
        if menu.wishes.plain() and not trusted:
            self._try_by_hand()

    def propose(self, budget_bytes: int) -> tuple[Span, ...] | None:
        """Return spans that the dynamic program predicts to fit; None where it finds none."""
        return self.spans(self.chain.solve(budget_bytes))

    def spans(self, result: ChainResult | None) -> tuple[Span, ...] | None:
        """Return the spans of what an algorithm chose."""
        if result is None:
            return None
        return tuple(span for option in result.options for span in self.menu.spans(option))

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
        for name, _, make in placements(self.graph, self.menu.blocks):
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
        found = None if result is None else self.pool.add(self.spans(result) or (), "dp")
        if result is None or found is None:
            return False
        off = abs(found.peak_bytes - result.peak_bytes(self.chain.top_bytes))
        return off <= _PREDICTION * found.peak_bytes
