"""From a plan to one that was run: probe, measure, tighten, repeat.

Each candidate of the search is probed (replays equal their originals bit for bit; what differs is
excluded by name) and measured; over the budget, the search is tightened by the difference, and
room that would lower the overhead is used (see `planner.planning.slack`). Where what was excluded
leaves no plan within the budget, the fallback runtime is tried.

Every round asks the search for less than the round before: units are left out that are not yet
(see `exclusions`), or the target is under what the last plan was predicted to take. A fault that
leaving units out does not mend ends the rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from planner.applier.runtime import segment_label
from planner.documents import Exclusion, Pins, Plan, Profile, Segment
from planner.errors import InfeasibleBudgetError, PlannerError, ReplayError
from planner.graph import Graph
from planner.planning.checks import check_same_results, planned_peak
from planner.planning.exclusions import exclusions_for, names_of, unmended
from planner.planning.fallback import unseen_units, with_checkpoints
from planner.planning.offline import from_profile
from planner.planning.probe import Fault, probe
from planner.planning.slack import told, use_room
from planner.training_step.step import Step

ROUNDS = 8
"""Probed and measured candidates at most; one or two are the rule."""


def settle(
    step: Step,
    profile: Profile,
    budget_bytes: int,
    *,
    method: str = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
    graph: Graph | None = None,
) -> Plan:
    """Return a plan that was run: its replays are right and its measured peak is in the budget.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget, predicted or measured.
        UnknownUnitError: a pin names no unit.
        ReplayError: a replay that the budget asks for is wrong, and no unit can be left out for it.
        PlannerError: no plan held what it promised.
    """
    settling = _Settling(step, profile, graph or Graph.of(profile), method, pins)
    try:
        return settling.within(budget_bytes)
    except InfeasibleBudgetError as error:
        raise settling.reached(error) from None


@dataclass(frozen=True, slots=True)
class _Settling:
    """One model, one profile, one set of wishes; what ran once is remembered, by segments."""

    step: Step
    profile: Profile
    graph: Graph
    method: str
    pins: Pins
    faults: dict[tuple[Segment, ...], list[Fault]] = field(default_factory=dict)
    peaks: dict[tuple[Segment, ...], int] = field(default_factory=dict)
    rounds: list[tuple[int, int]] = field(default_factory=list)  # predicted and measured

    def within(self, budget_bytes: int) -> Plan:
        """Return a probed and measured plan within the budget."""
        exclusions: list[Exclusion] = []
        target = budget_bytes
        for _ in range(ROUNDS):
            infeasible = None
            try:
                plan = self._search(target, exclusions)
            except InfeasibleBudgetError as error:
                infeasible = error
                plan = self._search(error.min_peak_bytes, exclusions)
            plan = replace(plan, budget_bytes=budget_bytes)
            faults = self._probe(plan)
            known = {e.unit for e in plan.exclusions}
            found = [e for e in exclusions_for(self.graph, plan, faults) if e.unit not in known]
            if found:
                exclusions += found
                continue
            if not faults and plan.predicted_peak_bytes <= budget_bytes:
                measured = self._measure(plan)
                if measured <= budget_bytes:
                    self._compare(plan)
                    plan = replace(plan, measured_peak_bytes=measured)
                    plan = use_room(plan, partial(self._search, exclusions=exclusions), self._run)
                    return replace(plan, notes=told(self.rounds))
                target = plan.predicted_peak_bytes - (measured - budget_bytes)
            if infeasible is not None:
                return self._with_fallback(_without(plan, faults), infeasible, exclusions)
            if faults:
                raise unmended(self.profile.model_class, faults[0], exclusions)
        raise PlannerError(
            f"no plan for this {self.profile.model_class} held what it promised in {ROUNDS} rounds",
            numbers=f"budget {budget_bytes} B; units left out: {names_of(exclusions)}",
            cause="replays differ from the forward, or the step changes from run to run",
            fix="make the step deterministic, or pin the units with save=[...]",
        )

    def reached(self, error: InfeasibleBudgetError) -> InfeasibleBudgetError:
        """Return the error with a smallest peak that was reached by running, not only predicted."""
        budget_bytes, lowest = error.budget_bytes, max(error.min_peak_bytes, error.budget_bytes + 1)
        for _ in range(ROUNDS):
            try:
                self.within(lowest)
            except InfeasibleBudgetError as again:
                lowest = max(again.min_peak_bytes, lowest + lowest // 100)
            except ReplayError:
                lowest = self.profile.plain_peak_bytes
            else:
                break
        else:
            lowest = self.profile.plain_peak_bytes
        return InfeasibleBudgetError(
            cause=error.cause,
            budget_bytes=budget_bytes,
            min_peak_bytes=lowest,
            holders=error.holders,
        )

    def _search(self, budget_bytes: int, exclusions: list[Exclusion]) -> Plan:
        return from_profile(
            self.profile,
            budget_bytes,
            method=self.method,
            pins=self.pins,
            exclusions=exclusions,
            graph=self.graph,
        )

    def _probe(self, plan: Plan) -> list[Fault]:
        if plan.segments not in self.faults:
            self.faults[plan.segments] = probe(self.step, plan) if plan.segments else []
        return self.faults[plan.segments]

    def _measure(self, plan: Plan) -> int:
        if not plan.segments:
            return self.profile.plain_peak_bytes
        if plan.segments not in self.peaks:
            peak = self.peaks[plan.segments] = planned_peak(self.step, plan)
            self.rounds.append((plan.predicted_peak_bytes, peak))
        return self.peaks[plan.segments]

    def _run(self, plan: Plan) -> int | None:
        """What a further plan takes; None where its replays are wrong."""
        if self._probe(plan):
            return None
        measured = self._measure(plan)
        if measured <= plan.budget_bytes:
            self._compare(plan)
        return measured

    def _compare(self, plan: Plan) -> None:
        if plan.segments:
            check_same_results(self.step, plan)

    def _with_fallback(
        self, plan: Plan, error: InfeasibleBudgetError, exclusions: list[Exclusion]
    ) -> Plan:
        """The lowest plan, with torch's checkpoint on what had to be excluded."""
        budget_bytes = plan.budget_bytes
        excluded = (*self.profile.excluded, *exclusions, *unseen_units(self.profile))
        if not excluded:
            raise InfeasibleBudgetError(
                budget_bytes=budget_bytes,
                min_peak_bytes=error.min_peak_bytes + max(budget_bytes - error.budget_bytes, 0),
                holders=error.holders,
            )
        plan = with_checkpoints(self.step, plan, excluded)
        measured = self._measure(plan)
        if measured <= budget_bytes:
            self._compare(plan)
            return replace(plan, predicted_peak_bytes=measured, measured_peak_bytes=measured)
        out = f"; left out, since replays are wrong: {names_of(exclusions)}" if exclusions else ""
        raise InfeasibleBudgetError(
            cause=error.cause + out,
            budget_bytes=budget_bytes,
            min_peak_bytes=min(measured, error.min_peak_bytes),
            holders=error.holders,
        )


def _without(plan: Plan, faults: list[Fault]) -> Plan:
    """Return the plan without the segments at fault."""
    wrong = {fault.segment for fault in faults}
    return replace(plan, segments=tuple(s for s in plan.segments if segment_label(s) not in wrong))
