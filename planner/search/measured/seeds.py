"""Plans worth measuring first: the best by prediction, those next to it, and those drawn by hand.

What predictions miss is often a few per cent, so the plans that a measurement should decide between
are those that the simulator puts close together.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.documents import Exclusion, Pins
from planner.graph.model import Graph
from planner.graph.span import IllegalSpanError, Span
from planner.search.baselines import placements
from planner.search.pool import Candidate, Pool, first_fit
from planner.search.solve import planner_of

NEIGHBOURS = (0.97, 0.93, 0.88)
"""Parts of the budget whose best plans are near the best one, and fit as well."""


def runners_up(
    graph: Graph,
    budget_bytes: int,
    most: int,
    *,
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Iterable[Exclusion] = (),
) -> tuple[Candidate, ...]:
    """Return plans within the budget, by simulation: neighbours, the best by hand, runners-up.

    Args:
        graph: the step.
        budget_bytes: most live bytes.
        most: how many to return.
        pins, exclusions: as for `planner.search.search`.
    """
    planner = planner_of(graph, pins, exclusions)
    pool = planner.pool.copy()
    found: dict[tuple[Span, ...], Candidate] = {}
    for part in (1.0, *NEIGHBOURS):
        near = first_fit(pool, planner.ladder.propose, "dp", int(budget_bytes * part), rounds=4)
        if near is not None:
            found.setdefault(near.spans, near)
    if planner.wishes.plain():
        by_hand = _best_by_hand(graph, budget_bytes)
        if by_hand is not None:
            found.setdefault(by_hand.spans, by_hand)
    fit = (c for c in pool.seen.values() if c is not None and c.peak_bytes <= budget_bytes)
    for candidate in sorted(fit, key=lambda c: c.rank):
        found.setdefault(candidate.spans, candidate)
    return tuple(c for c in found.values() if c.spans)[:most]


def _best_by_hand(graph: Graph, budget_bytes: int) -> Candidate | None:
    pool = Pool(graph)
    for name, _, make in placements(graph):
        try:
            pool.add(make(), name)
        except IllegalSpanError:  # a group boundary at which the engine cannot stop
            continue
    pool.seen.pop((), None)
    return pool.best(budget_bytes)
