"""A stored plan simulated on a stored profile: timeline, predicted figures, reasons. No torch.

Called by `planner report`, `planner explain` and `planner plan --plot`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from planner.documents import Exclusion, Plan, Profile
from planner.errors import StalePlanError
from planner.graph import Graph, Span, resolve
from planner.graph.fate import Kept
from planner.graph.live_bytes import Timeline
from planner.graph.reasons import kept_values
from planner.graph.simulate import simulate
from planner.graph.timeline import memory_line
from planner.search.holders import unit_at

LEAST_PHASE = 0.02
"""Phases with a smaller share of the ops get no label."""


def graph_for(plan: Plan, profile: Profile) -> Graph:
    """Return the profile's graph.

    Raises:
        StalePlanError: the plan is for another model than the profile.
    """
    if plan.fingerprint != profile.fingerprint:
        raise StalePlanError(
            f"the plan is for another model than the profile of {profile.model_class}",
            numbers=f"fingerprint {plan.fingerprint} in the plan, {profile.fingerprint} in the"
            " profile",
            cause="the model's structure changed between the two, or the files are mixed up",
            fix="profile the model again, and plan again from that profile",
        )
    return Graph.of(profile)


def replayed_spans(graph: Graph, plan: Plan) -> tuple[Span, ...]:
    """Return the segments that are replayed as spans; torch's checkpoints are not simulated.

    Raises:
        StalePlanError: the plan names units or ops that the profile does not have.
    """
    return resolve(graph, [s for s in plan.segments if s.runtime == "replay"])


def found_exclusions(plan: Plan, profile: Profile) -> tuple[Exclusion, ...]:
    """Return the units that a plan leaves out and its profile does not: what a probe found."""
    listed = {exclusion.unit for exclusion in profile.excluded}
    return tuple(e for e in plan.exclusions if e.unit not in listed)


def predict(graph: Graph, plan: Plan) -> Plan:
    """Return the plan with peak and overhead predicted from this profile.

    Times are measured, so they differ between two profiles of one step.

    Raises:
        StalePlanError: the plan names units or ops that the profile does not have.
    """
    result = simulate(graph, replayed_spans(graph, plan))
    return replace(
        plan,
        predicted_peak_bytes=result.peak_bytes,
        predicted_overhead_ratio=round(result.overhead_ns / max(graph.profile.step_time_ns, 1), 6),
    )


def timeline(graph: Graph, plan: Plan) -> Timeline:
    """Return the predicted live bytes over the step, plain and planned.

    Raises:
        StalePlanError: the plan names units or ops that the profile does not have.
    """
    lines = [memory_line(graph, spans) for spans in ((), replayed_spans(graph, plan))]
    plain, planned = (replace(line, peak_unit=place(graph, line.peak_op)) for line in lines)
    return Timeline(plain, planned, plan.budget_bytes, graph.forward_stop, tuple(_phases(graph)))


def place(graph: Graph, op: int) -> str:
    """Return in words what runs at an op: its unit, or the part of the step outside the model."""
    if op >= graph.n_ops:
        return "the end of the step"
    profile = graph.profile
    unit = unit_at(graph, op)
    if op >= graph.forward_stop:
        return f"backward of {unit}" if unit else f"{profile.ops[op].phase} of the loss"
    model_ends = max((u.exit for u in profile.units if u.parent < 0), default=0)
    return unit or ("the loss" if op >= model_ends else "the model's own code")


def _phases(graph: Graph) -> Iterator[tuple[str, int, int]]:
    start = 0
    for phase, ops in groupby(op.phase for op in graph.profile.ops):
        stop = start + len(list(ops))
        if stop - start >= LEAST_PHASE * graph.n_ops:
            yield phase, start, stop
        start = stop


def keep_reasons(graph: Graph, plan: Plan) -> tuple[tuple[Kept, ...], ...]:
    """Return, for each segment of a plan, what it keeps and why.

    Raises:
        StalePlanError: the plan names units or ops that the profile does not have.
    """
    found = []
    for segment in plan.segments:
        spans = resolve(graph, [segment]) if segment.runtime == "replay" else ()
        found.append(tuple(kept for span in spans for kept in kept_values(graph, span)))
    return tuple(found)
