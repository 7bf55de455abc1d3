"""`sweep_profile`: the least overhead for every budget, from a profile.

Called by `planner.sweep`, `planner sweep` and `planner report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.analysis.knee import find_knee
from planner.budget import parse_budget
from planner.documents import Exclusion, Pins, Profile
from planner.documents.frontier import Frontier, FrontierPoint
from planner.errors import InfeasibleBudgetError
from planner.graph import Graph
from planner.search import floor
from planner.search.holders import holders
from planner.search.pool import Candidate
from planner.search.sweep import hand_placements, sweep_budgets

POINTS = 50
"""Budgets of a sweep when none are given."""


def sweep_profile(
    profile: Profile,
    budgets: Sequence[float | str] | None = None,
    *,
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Sequence[Exclusion] = (),
    baselines: bool = True,
    points: int = POINTS,
    graph: Graph | None = None,
) -> Frontier:
    """Return the frontier of a profile; see `planner.sweep`.

    Args:
        profile: the profile.
        budgets: as for `planner.sweep`.
        pins: units to save or to recompute.
        exclusions: units that never run again, besides those that the profile lists.
        baselines: also play placements by hand.
        points: number of budgets when none are given.
        graph: of the profile, if there is one already.
    """
    graph = graph or Graph.of(profile)
    spans, lowest = floor(graph, pins=pins, exclusions=exclusions)
    plain = profile.plain_peak_bytes
    sizes = _even(lowest, plain, points) if budgets is None else _sizes(budgets, plain)
    if all(size < lowest for size in sizes):
        raise InfeasibleBudgetError(
            budget_bytes=max(sizes, default=0), min_peak_bytes=lowest, holders=holders(graph, spans)
        )
    by_hand = hand_placements(graph) if baselines else ()
    all_sizes = [*sizes, *(baseline.peak_bytes for baseline in by_hand)]
    found = sweep_budgets(graph, all_sizes, pins, exclusions)
    step_ns = max(profile.step_time_ns, 1)

    def ratio(candidate: Candidate) -> float:
        return round(candidate.overhead_ns / step_ns, 6)

    on_curve = tuple(
        FrontierPoint(size, best.peak_bytes, ratio(best), len(best.spans))
        for size, best in zip(sizes, found, strict=False)
        if best is not None
    )
    return Frontier(
        model_class=profile.model_class,
        plain_peak_bytes=plain,
        floor_bytes=lowest,
        step_time_ns=profile.step_time_ns,
        knee=find_knee(on_curve),
        points=on_curve,
        baselines=tuple(
            replace(baseline, planned_overhead_ratio=None if best is None else ratio(best))
            for baseline, best in zip(by_hand, found[len(sizes) :], strict=True)
        ),
    )


def _sizes(budgets: Sequence[float | str], plain_peak_bytes: int) -> list[int]:
    return sorted({parse_budget(budget).resolve(plain_peak_bytes) for budget in budgets})


def _even(low: int, high: int, count: int) -> list[int]:
    """Return `count` budgets from low to high; fewer where they are few bytes apart."""
    if count < 2 or high <= low:
        return sorted({low, max(low, high)})
    return sorted({low + (high - low) * k // (count - 1) for k in range(count)})
