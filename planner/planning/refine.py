"""The one loop from a search to a plan that was run: search, run, tighten or use the slack.

A policy says how candidates are searched for, what running one shows, and what is left to do where
none fits. Every round asks the search for less than the round before: units are left out that were
not yet, or the target lies below what the last plan was predicted to take. Where a tightened target
cannot be reached, the plan with the lowest peak is run before the budget is called infeasible.

SLACK    what a measured plan leaves of its budget, where predictions are too high (an allocator
         that shares blocks, lives that end sooner). The next search may take that much more by its
         own count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from planner.documents import Exclusion, Plan, Segment
from planner.errors import InfeasibleBudgetError, PlannerError
from planner.planning.exclusions import names_of, no_exclusion_helps
from planner.planning.probe import Fault
from planner.units import format_bytes

ROUNDS = 8
"""Candidates that are run at most; one or two are the rule."""
SLACK_ROUNDS = 3
"""Further candidates that use the slack."""


@dataclass(frozen=True, slots=True)
class Fits:
    """The candidate was run: its replays are right, its peak is within the budget."""

    peak_bytes: int


@dataclass(frozen=True, slots=True)
class TooHigh:
    """The candidate takes more than the budget.

    Attributes:
        peak_bytes: measured; None where the prediction alone rules it out.
    """

    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Faulty:
    """Replays of the candidate are wrong, and leaving units out does not change that."""

    faults: Sequence[Fault]


@dataclass(frozen=True, slots=True)
class SearchAgain:
    """The run showed something that the next search takes into account.

    Attributes:
        target_bytes: for how much to search now; None for as much as before.
        peak_bytes: of the candidate, where it was measured.
    """

    target_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """No candidate can be measured: this plan is returned as it is."""

    plan: Plan


Outcome = Fits | TooHigh | Faulty | SearchAgain | Accepted


class Policy(Protocol):
    """How plans are searched for and run.

    Attributes:
        exclusions: units that the search leaves out from now on; `run` adds to them.
    """

    exclusions: list[Exclusion]

    def search(self, target_bytes: int) -> Plan:
        """Return the best plan whose predicted peak is within so many bytes.

        Raises:
            InfeasibleBudgetError: there is none.
        """

    def run(self, plan: Plan) -> Outcome:
        """Run a candidate as far as its budget allows, and return what that showed."""

    def none_fits(self, plan: Plan, outcome: Outcome, error: InfeasibleBudgetError) -> Plan:
        """Return another kind of plan where that with the lowest peak does not fit, or raise.

        Args:
            plan: the one with the lowest peak.
            outcome: what running it showed.
            error: of the search.
        """


def refine(policy: Policy, budget_bytes: int) -> Plan:
    """Return a plan that was run within the budget; its notes tell where several rounds were due.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget, predicted or measured.
        ReplayError: a replay that the budget asks for is wrong, and no unit can be left out for it.
        PlannerError: no candidate fitted within the rounds.
    """
    rounds, target = Rounds(), budget_bytes
    plan, model_class, peak = None, "model", 0
    for _ in range(ROUNDS):
        plan, infeasible = _candidate(policy, target)
        plan, model_class = replace(plan, budget_bytes=budget_bytes), plan.model_class
        outcome = rounds.run(policy, plan)
        if isinstance(outcome, Accepted):
            return rounds.noted_in(outcome.plan)
        if isinstance(outcome, Fits):
            plan = replace(plan, measured_peak_bytes=outcome.peak_bytes)
            return rounds.noted_in(use_slack(plan, policy.search, rounds.peak_under(policy)))
        if isinstance(outcome, SearchAgain):
            target = target if outcome.target_bytes is None else outcome.target_bytes
        elif infeasible is not None:
            return policy.none_fits(plan, outcome, infeasible)
        elif isinstance(outcome, Faulty):
            raise no_exclusion_helps(model_class, outcome.faults[0], policy.exclusions)
        else:
            peak = outcome.peak_bytes or plan.predicted_peak_bytes
            target = plan.predicted_peak_bytes - (peak - budget_bytes)
    raise PlannerError(
        f"none of {ROUNDS} plans for this {model_class} was right and within the budget",
        numbers=f"budget {format_bytes(budget_bytes)}, last measured peak {format_bytes(peak)};"
        f" units left out: {names_of(policy.exclusions)}",
        cause="replays differ from the forward, or the step changes from run to run",
        fix="make the step deterministic, pin the units with save=[...], or raise the budget",
    )


def _candidate(policy: Policy, target_bytes: int) -> tuple[Plan, InfeasibleBudgetError | None]:
    """The best plan for a target, or else the lowest one and the error that says so."""
    try:
        return policy.search(target_bytes), None
    except InfeasibleBudgetError as error:
        return policy.search(error.min_peak_bytes), error


@dataclass(frozen=True, slots=True)
class Rounds:
    """The candidates that were measured, with their predicted and measured peaks."""

    peaks: dict[tuple[Segment, ...], tuple[int, int]] = field(default_factory=dict)

    def run(self, policy: Policy, plan: Plan) -> Outcome:
        """Run a candidate and write down what it took."""
        outcome = policy.run(plan)
        peak = None if isinstance(outcome, Faulty | Accepted) else outcome.peak_bytes
        if peak is not None:
            self.peaks.setdefault(plan.segments, (plan.predicted_peak_bytes, peak))
        return outcome

    def peak_under(self, policy: Policy) -> Callable[[Plan], int | None]:
        """Return what runs a further candidate: its peak, or None where it cannot be used."""

        def run(plan: Plan) -> int | None:
            outcome = self.run(policy, plan)
            return outcome.peak_bytes if isinstance(outcome, Fits) else None

        return run

    def noted_in(self, plan: Plan) -> Plan:
        """Return the plan with a note on the rounds, where there were several."""
        return replace(plan, notes=(*plan.notes, *rounds_note([*self.peaks.values()])))


def use_slack(plan: Plan, search: Callable[[int], Plan], run: Callable[[Plan], int | None]) -> Plan:
    """Return a plan with less overhead that was measured within the budget too, or the given one.

    Args:
        plan: measured, within its budget.
        search: returns the best plan whose predicted peak is within so many bytes.
        run: measures a plan's peak; None where the plan cannot be used.
    """
    predicted = plan.predicted_peak_bytes
    for _ in range(SLACK_ROUNDS):
        slack = predicted - (plan.measured_peak_bytes or predicted)
        if slack <= 0 or not plan.segments:
            break
        found = search(plan.budget_bytes + slack)
        if found.predicted_overhead_ratio >= plan.predicted_overhead_ratio:
            break
        predicted = found.predicted_peak_bytes
        other = replace(
            found, budget_bytes=plan.budget_bytes, predicted_peak_bytes=predicted - slack
        )
        measured = run(other)
        if measured is None or measured > plan.budget_bytes:
            break
        plan = replace(other, measured_peak_bytes=measured)
    return plan


def rounds_note(rounds: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Return the note on rounds, each predicted and measured bytes; none where one was enough."""
    if len(rounds) < 2:
        return ()
    each = (f"{format_bytes(p)} and {format_bytes(m)}" for p, m in rounds)
    return (f"peaks predicted and measured, round by round: {', '.join(each)}",)
