"""`sweep`: the least overhead for every budget, from a model or a stored profile.

Pure search when given a profile; a model is profiled first. No torch is imported for a profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from planner.documents import Exclusion, Pins, Profile
from planner.documents.frontier import Frontier, FrontierPoint
from planner.errors import InfeasibleBudgetError
from planner.graph import Graph
from planner.search import floor
from planner.search.holders import holders
from planner.search.pool import Candidate
from planner.search.sweep import hand_placements, sweep_budgets
from planner.units import parse_budget

if TYPE_CHECKING:
    import torch
    from torch import nn

POINTS = 50
"""Budgets of a sweep when none are given."""


def sweep(
    model_or_profile: nn.Module | Profile | str | PathLike[str],
    budgets: Sequence[float | str] | None = None,
    *,
    inputs: Any = None,
    loss_fn: Callable[[Any], Any] | None = None,
    step: Callable[[nn.Module], Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    save: Sequence[str] = (),
    recompute: Sequence[str] = (),
    baselines: bool = True,
) -> Frontier:
    """Return the least predicted overhead for each budget, and where the curve bends.

    All budgets are answered by one search.

    Args:
        model_or_profile: a model, a `Profile`, or the path of a stored profile.
        budgets: as `budget_mb` of `planner.plan`; by default 50 from the smallest reachable peak
            to the plain step's peak. Budgets below the smallest reachable peak have no point.
        inputs, loss_fn, step, optimizer: as for `planner.profile`, when given a model.
        save, recompute: pins, as for `planner.plan`.
        baselines: also play placements by hand (every block, best k of n, uniform, sqrt).

    Raises:
        InfeasibleBudgetError: all budgets given are below the smallest reachable peak.
        InvalidBudgetError, UnknownUnitError: see `planner.plan`.
        ProfileNotFoundError, InvalidModelError, InvalidInputsError, StepError: see
            `planner.profile`.
    """
    profile = _profile(model_or_profile, inputs, loss_fn, step, optimizer)
    pins = Pins(tuple(save), tuple(recompute))
    return sweep_profile(profile, budgets, pins=pins, baselines=baselines)


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
    """Return the frontier of a profile; see `sweep`.

    Args:
        profile: the profile.
        budgets: as for `sweep`.
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

    return Frontier(
        model_class=profile.model_class,
        plain_peak_bytes=plain,
        floor_bytes=lowest,
        step_time_ns=profile.step_time_ns,
        points=tuple(
            FrontierPoint(size, best.peak_bytes, ratio(best), len(best.spans))
            for size, best in zip(sizes, found, strict=False)
            if best is not None
        ),
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


def _profile(given: Any, inputs: Any, loss_fn: Any, step: Any, optimizer: Any) -> Profile:
    if isinstance(given, Profile):
        return given
    if isinstance(given, (str, PathLike)):
        return Profile.load(given)
    from planner.api import profile
    from planner.training_step.fingerprint import fingerprint
    from planner.training_step.inputs import find_profile

    if inputs is None and step is None:
        stored = find_profile(fingerprint(given))
        if stored is not None:
            return stored
    return profile(given, inputs=inputs, loss_fn=loss_fn, step=step, optimizer=optimizer)
