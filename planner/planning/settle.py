"""From a plan to one that was run: probe, measure, tighten, repeat.

Each candidate of the search is probed (replays equal their originals bit for bit; what differs is
excluded by name) and measured; over the budget, the search is tightened by the difference. Where
what was excluded leaves no plan within the budget, the fallback runtime is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.documents import Exclusion, Pins, Plan, Profile
from planner.errors import InfeasibleBudgetError, PlannerError
from planner.graph import Graph
from planner.planning.fallback import unseen_units, with_checkpoints
from planner.planning.offline import from_profile
from planner.planning.probe import probe
from planner.planning.promises import check_same_results, planned_peak
from planner.profiler.step import Step

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
    """
    settling = _Settling(step, profile, graph or Graph.of(profile), method, pins)
    try:
        return settling.within(budget_bytes)
    except InfeasibleBudgetError as error:
        raise settling.reached(error) from None


@dataclass(frozen=True, slots=True)
class _Settling:
    """One model, one profile, one set of wishes."""

    step: Step
    profile: Profile
    graph: Graph
    method: str
    pins: Pins

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
            found = self._probe(plan, exclusions)
            if found:
                exclusions += found
                continue
            if infeasible is not None:
                return self._with_fallback(plan, infeasible, exclusions)
            measured = self._measure(plan)
            if measured <= budget_bytes:
                self._compare(plan)
                return replace(plan, measured_peak_bytes=measured)
            target -= measured - budget_bytes
        raise PlannerError(
            f"no plan for this {self.profile.model_class} held what it promised in {ROUNDS} rounds",
            numbers=f"{len(exclusions)} units excluded: {', '.join(e.unit for e in exclusions)}",
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
            else:
                break
        else:
            lowest = self.profile.plain_peak_bytes
        return InfeasibleBudgetError(
            budget_bytes=budget_bytes, min_peak_bytes=lowest, holders=error.holders
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

    def _probe(self, plan: Plan, exclusions: list[Exclusion]) -> list[Exclusion]:
        if not plan.segments:
            return []
        return probe(self.step, plan, {e.unit for e in exclusions})

    def _measure(self, plan: Plan) -> int:
        if not plan.segments:
            return self.profile.plain_peak_bytes
        return planned_peak(self.step, plan)

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
        lowest = min(measured, error.min_peak_bytes)
        raise InfeasibleBudgetError(
            budget_bytes=budget_bytes, min_peak_bytes=lowest, holders=error.holders
        )
