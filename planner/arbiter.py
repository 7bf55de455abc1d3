"""From a profile to a plan, and from a plan to one that was run: probe, measure, tighten, repeat.

`from_profile` is pure search. `settle` also has the model: each candidate is probed (replays equal
their originals bit for bit; what differs is excluded by name) and measured; over the budget, the
search is tightened by the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.applier.gates import install
from planner.applier.runtime import Runtime
from planner.documents import Exclusion, Pins, Plan, Profile
from planner.errors import InfeasibleBudgetError, PlannerError, ReplayError
from planner.graph import Graph, emit
from planner.graph.address import unit_of
from planner.profiler.step import Step
from planner.search import search
from planner.verifier.measure import from_same_state, measure_peak

ROUNDS = 6
"""Probed and measured candidates at most; two are the rule."""


def from_profile(
    profile: Profile,
    budget_bytes: int,
    *,
    method: str = "auto",
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
        pins=pins,
    )


def settle(
    step: Step,
    profile: Profile,
    budget_bytes: int,
    *,
    method: str = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
) -> Plan:
    """Return a plan that was run: its replays are right and its measured peak is in the budget.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget, predicted or measured.
        UnknownUnitError: a pin names no unit.
    """
    graph = Graph.of(profile)
    try:
        return _settle(step, profile, graph, budget_bytes, method, pins)
    except InfeasibleBudgetError as error:
        raise _reached(step, profile, graph, error, method, pins) from None


def _settle(
    step: Step, profile: Profile, graph: Graph, budget_bytes: int, method: str, pins: Pins
) -> Plan:
    exclusions: list[Exclusion] = []
    target = budget_bytes
    for _ in range(ROUNDS):
        plan = from_profile(
            profile, target, method=method, pins=pins, exclusions=exclusions, graph=graph
        )
        plan = replace(plan, budget_bytes=budget_bytes)
        found = probe(step, plan, {e.unit for e in exclusions}) if plan.segments else None
        if found is not None:
            exclusions.append(found)
            continue
        measured = _measured(step, plan) if plan.segments else profile.plain_peak_bytes
        if measured <= budget_bytes:
            return replace(plan, measured_peak_bytes=measured)
        target -= measured - budget_bytes
    raise PlannerError(
        f"no plan for this {profile.model_class} held what it promised in {ROUNDS} rounds",
        numbers=f"{len(exclusions)} units excluded: {', '.join(e.unit for e in exclusions)}",
        cause="replays differ from the forward, or the step changes from run to run",
        fix="make the step deterministic, or pin the units with save=[...]",
    )


def _reached(
    step: Step,
    profile: Profile,
    graph: Graph,
    error: InfeasibleBudgetError,
    method: str,
    pins: Pins,
) -> InfeasibleBudgetError:
    """The same error with a smallest peak that was reached by running, not only predicted."""
    budget_bytes, lowest = error.budget_bytes, max(error.min_peak_bytes, error.budget_bytes + 1)
    for _ in range(ROUNDS):
        try:
            _settle(step, profile, graph, lowest, method, pins)
        except InfeasibleBudgetError as again:
            lowest = max(again.min_peak_bytes, lowest + lowest // 100)
        else:
            break
    else:
        lowest = profile.plain_peak_bytes
    return InfeasibleBudgetError(
        budget_bytes=budget_bytes, min_peak_bytes=lowest, holders=error.holders
    )


def probe(step: Step, plan: Plan, known: set[str]) -> Exclusion | None:
    """Run one step with every replay compared to its original; returns the first unit to exclude.

    Args:
        known: units that are excluded already.
    """
    runtime = Runtime(plan)
    runtime.audit()
    hooks = install(step.model, runtime)
    try:
        with from_same_state(step):
            step.run()
    except PlannerError as error:
        wrong = _replay_error(error)
        if wrong is None:
            raise
        return Exclusion(_culprit(plan, wrong.unit, known), f"replay failed: {wrong.what}")
    finally:
        for hook in hooks:
            hook.remove()
    if not runtime.findings:
        return None
    finding = runtime.findings[0]
    unit = unit_of(finding.address) if finding.address else ""
    if not unit or unit in known:
        unit = _culprit(plan, finding.segment, known)
    why = "its replay differs" if finding.deterministic else "its kernel is not deterministic"
    return Exclusion(unit, f"{why}: {finding.op} ({finding.address or finding.segment})")


def _replay_error(error: BaseException | None) -> ReplayError | None:
    while error is not None and not isinstance(error, ReplayError):
        error = error.__cause__
    return error


def _culprit(plan: Plan, label: str, known: set[str]) -> str:
    """The unit of the segment with this label; the first one not excluded where it is unclear."""
    first = label.split(" .. ", maxsplit=1)[0]
    units = [s.start.unit for s in plan.segments if s.start.unit == first]
    units += [s.start.unit for s in plan.segments]
    return next((unit for unit in units if unit not in known), units[0])


def _measured(step: Step, plan: Plan) -> int:
    """The larger peak of a first step, which records, and a second one, which follows."""
    hooks = install(step.model, Runtime(plan))
    try:
        return max(measure_peak(step) for _ in range(2))
    finally:
        for hook in hooks:
            hook.remove()
