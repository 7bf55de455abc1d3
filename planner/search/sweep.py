"""Many budgets from one search, and the placements by hand beside them.

What a search learns about a graph (blocks, options, floor) does not depend on the budget, so a
sweep builds it once. All candidates of all budgets share one pool: whatever fits a budget also
fits a larger one, so the overhead never rises with the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.documents import Exclusion, Pins
from planner.documents.frontier import Baseline
from planner.graph.model import Graph
from planner.graph.simulate import simulate
from planner.graph.span import IllegalSpanError
from planner.search.baselines import placements
from planner.search.pool import Candidate, first_fit
from planner.search.solve import planner_of


def sweep_budgets(
    graph: Graph,
    budgets_bytes: Sequence[int],
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Iterable[Exclusion] = (),
) -> tuple[Candidate | None, ...]:
    """Return, for each budget, the cheapest candidate within it; None below the floor.

    Raises:
        UnknownUnitError: a pin names no unit.
    """
    planner = planner_of(graph, pins, exclusions)
    pool = planner.pool.copy()
    for budget in sorted(set(budgets_bytes)):
        if budget >= planner.floor.peak_bytes:
            first_fit(pool, planner.ladder.propose, "dp", budget)
    return tuple(pool.best(budget) for budget in budgets_bytes)


def hand_placements(graph: Graph) -> tuple[Baseline, ...]:
    """Return the placements by hand, each played by the same simulator as our plans."""
    found = []
    for name, setting, make in placements(graph):
        try:
            result = simulate(graph, make())
        except IllegalSpanError:  # a group boundary at which the engine cannot stop
            continue
        ratio = round(result.overhead_ns / max(graph.profile.step_time_ns, 1), 6)
        found.append(Baseline(name, setting, result.peak_bytes, ratio))
    return tuple(found)
