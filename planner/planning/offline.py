"""From a profile to a plan, by search and simulation alone. Nothing runs; no torch."""

from __future__ import annotations

from collections.abc import Sequence

from planner.documents import Exclusion, Pins, Plan, Profile
from planner.graph import Graph, emit
from planner.search import Method, search


def from_profile(
    profile: Profile,
    budget_bytes: int,
    *,
    method: Method = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Sequence[Exclusion] = (),
    graph: Graph | None = None,
) -> Plan:
    """Return the cheapest plan for a profile, by simulation alone.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget.
        UnknownUnitError: a pin names no unit.
    """
    graph = graph or Graph.of(profile)
    result = search(graph, budget_bytes, method=method, pins=pins, exclusions=exclusions)
    return Plan(
        model_class=profile.model_class,
        fingerprint=profile.fingerprint,
        step=profile.step,
        budget_bytes=budget_bytes,
        predicted_peak_bytes=result.peak_bytes,
        predicted_overhead_ratio=round(result.overhead_ns / max(profile.step_time_ns, 1), 6),
        plain_peak_bytes=profile.plain_peak_bytes,
        solver=result.solver,
        status=result.status,
        floor_bytes=result.floor_bytes,
        gap=result.gap,
        segments=emit(graph, result.spans),
        exclusions=(*profile.excluded, *exclusions),
        custom_ops=profile.custom_ops,
        pins=pins,
    )
