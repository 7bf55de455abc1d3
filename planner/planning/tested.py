"""The policy where the plain step can run: candidates are probed and measured on the model.

Replays are compared with their originals bit for bit; units whose replay differs are excluded by
name. A candidate within the budget must also give plain's results. Where what was excluded leaves
no plan within the budget, the fallback runtime (torch's checkpoint) is tried on those units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from planner.applier.segments import segment_name
from planner.documents import Exclusion, Pins, Plan, Profile, Segment
from planner.errors import InfeasibleBudgetError, ReplayError
from planner.graph import Graph
from planner.planning.checks import check_same_results, planned_peak
from planner.planning.exclusions import exclusions_for, names_of
from planner.planning.fallback import unseen_units, with_checkpoints
from planner.planning.offline import from_profile
from planner.planning.probe import Fault, probe
from planner.planning.refine import (
    ROUNDS,
    Faulty,
    Fits,
    Outcome,
    SearchAgain,
    TooHigh,
    refine,
)
from planner.search import Method
from planner.training_step.step import Step


def plan_tested(
    step: Step,
    profile: Profile,
    budget_bytes: int,
    *,
    method: Method = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
    graph: Graph | None = None,
) -> Plan:
    """Return a plan that was run: its replays are right and its measured peak is in the budget.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget, predicted or measured.
        UnknownUnitError: a pin names no unit.
        ReplayError: a replay that the budget asks for is wrong, and no unit can be left out for it.
        PlannerError: no candidate was right and within the budget.
    """
    seen = _Seen(step, profile)
    graph = graph or Graph.of(profile)

    def policy() -> _Tested:
        return _Tested(seen, graph, method, pins)

    try:
        return refine(policy(), budget_bytes)
    except InfeasibleBudgetError as error:
        lowest = _lowest_run(policy, error, profile.plain_peak_bytes)
        raise InfeasibleBudgetError(
            cause=error.cause,
            budget_bytes=error.budget_bytes,
            min_peak_bytes=lowest,
            holders=error.holders,
        ) from None


def _lowest_run(
    policy: Callable[[], _Tested], error: InfeasibleBudgetError, plain_peak_bytes: int
) -> int:
    """The smallest peak that was reached by running a plan, not only predicted."""
    lowest = max(error.min_peak_bytes, error.budget_bytes + 1)
    for _ in range(ROUNDS):
        try:
            refine(policy(), lowest)
        except InfeasibleBudgetError as again:
            lowest = max(again.min_peak_bytes, lowest + lowest // 100)
        except ReplayError:
            break
        else:
            return lowest
    return plain_peak_bytes


@dataclass(frozen=True, slots=True)
class _Seen:
    """One step and its plain profile; what plans showed when they ran is kept, by segments."""

    step: Step
    profile: Profile
    _faults: dict[tuple[Segment, ...], list[Fault]] = field(default_factory=dict)
    _peaks: dict[tuple[Segment, ...], int] = field(default_factory=dict)

    def faults(self, plan: Plan) -> list[Fault]:
        """Return the plan's wrong replays."""
        if plan.segments not in self._faults:
            self._faults[plan.segments] = probe(self.step, plan) if plan.segments else []
        return self._faults[plan.segments]

    def peak_bytes(self, plan: Plan) -> int:
        """Return the plan's measured peak."""
        if not plan.segments:
            return self.profile.plain_peak_bytes
        if plan.segments not in self._peaks:
            self._peaks[plan.segments] = planned_peak(self.step, plan)
        return self._peaks[plan.segments]


@dataclass(slots=True)
class _Tested:
    """The policy: one set of pins, and what had to be excluded so far."""

    seen: _Seen
    graph: Graph
    method: Method
    pins: Pins
    exclusions: list[Exclusion] = field(default_factory=list)

    def search(self, target_bytes: int) -> Plan:
        """See `Policy`."""
        return from_profile(
            self.seen.profile,
            target_bytes,
            method=self.method,
            pins=self.pins,
            exclusions=self.exclusions,
            graph=self.graph,
        )

    def run(self, plan: Plan) -> Outcome:
        """See `Policy`: the probe first, then the peak, then the results."""
        faults = self.seen.faults(plan)
        found = exclusions_for(self.graph, plan, faults)
        if found:
            self.exclusions += found
            return SearchAgain()
        if faults:
            return Faulty(faults)
        if plan.predicted_peak_bytes > plan.budget_bytes:
            return TooHigh(None)
        peak = self.seen.peak_bytes(plan)
        if peak > plan.budget_bytes:
            return TooHigh(peak)
        self._check_results(plan)
        return Fits(peak)

    def none_fits(self, plan: Plan, outcome: Outcome, error: InfeasibleBudgetError) -> Plan:
        """See `Policy`: torch's checkpoint on what had to be excluded, if that is enough."""
        profile, budget_bytes = self.seen.profile, plan.budget_bytes
        excluded = (*profile.excluded, *self.exclusions, *unseen_units(profile))
        if not excluded:
            raise InfeasibleBudgetError(
                budget_bytes=budget_bytes,
                min_peak_bytes=error.min_peak_bytes + max(budget_bytes - error.budget_bytes, 0),
                holders=error.holders,
            )
        if isinstance(outcome, Faulty):
            plan = _without(plan, outcome.faults)
        plan = with_checkpoints(self.seen.step, profile, plan, excluded)
        measured = self.seen.peak_bytes(plan)
        if measured <= budget_bytes:
            self._check_results(plan)
            return replace(plan, predicted_peak_bytes=measured, measured_peak_bytes=measured)
        wrong = names_of(self.exclusions)
        raise InfeasibleBudgetError(
            cause=error.cause
            + (f"; left out, since replays are wrong: {wrong}" if self.exclusions else ""),
            budget_bytes=budget_bytes,
            min_peak_bytes=min(measured, error.min_peak_bytes),
            holders=error.holders,
        )

    def _check_results(self, plan: Plan) -> None:
        if plan.segments:
            check_same_results(self.seen.step, plan)


def _without(plan: Plan, faults: Sequence[Fault]) -> Plan:
    """Return the plan without the segments at fault."""
    wrong = {fault.segment for fault in faults}
    return replace(plan, segments=tuple(s for s in plan.segments if segment_name(s) not in wrong))
