"""Closing the loop from below: room that a measured plan leaves is used where that costs less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import zoo

from planner.documents import Plan, Profile
from planner.planning import tested
from planner.planning.offline import from_profile
from planner.planning.refine import SLACK_ROUNDS, rounds_note, use_slack
from planner.profiler.build import build_profile
from planner.training_step.step import Step, make_step
from planner.verifier import verify_plan


@pytest.fixture(scope="module")
def known() -> tuple[Step, Profile]:
    model, x = zoo.small_net(blocks=5)
    step = make_step(model, inputs=x)
    profile = build_profile(step)  # equal times, so that overheads compare exactly
    return step, replace(profile, ops=tuple(replace(op, time_ns=10_000) for op in profile.ops))


def budget_of(profile: Profile, percent: int) -> int:
    return profile.plain_peak_bytes * percent // 100


@pytest.mark.parametrize("too_high", [4_000, 40_000])
def test_predictions_that_are_too_high_leave_no_room_unused(
    known: tuple[Step, Profile], too_high: int
) -> None:
    profile = known[1]
    budget = budget_of(profile, 75)
    runs: list[Plan] = []

    def run(plan: Plan) -> int:
        """What would be measured: by so much less than the search counts."""
        runs.append(plan)
        raw = from_profile(profile, plan.predicted_peak_bytes + too_high)
        return min(raw.predicted_peak_bytes, plan.predicted_peak_bytes + too_high) - too_high

    first = from_profile(profile, budget)
    measured = replace(first, measured_peak_bytes=first.predicted_peak_bytes - too_high)
    found = use_slack(measured, lambda target: from_profile(profile, target), run)
    assert len(runs) <= SLACK_ROUNDS
    assert found.measured_peak_bytes is not None and found.measured_peak_bytes <= budget
    assert found.predicted_peak_bytes <= budget == found.budget_bytes
    assert found.predicted_overhead_ratio <= first.predicted_overhead_ratio
    if too_high > 10_000:
        assert found.predicted_overhead_ratio < first.predicted_overhead_ratio


@pytest.mark.parametrize("answer", [None, 10**12])
def test_a_further_plan_that_does_not_hold_is_dropped(
    known: tuple[Step, Profile], answer: int | None
) -> None:
    profile = known[1]
    first = from_profile(profile, budget_of(profile, 75))
    measured = replace(first, measured_peak_bytes=first.predicted_peak_bytes - 40_000)
    search = lambda target: from_profile(profile, target)  # noqa: E731
    assert use_slack(measured, search, lambda plan: answer) == measured


def test_the_plan_says_what_each_round_took(
    known: tuple[Step, Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, profile = known
    real = tested.planned_peak
    exact = tested.plan_tested(step, profile, budget_of(profile, 75))
    assert exact.notes == () and exact.measured_peak_bytes == exact.predicted_peak_bytes

    def less(step: Step, plan: Plan) -> Any:
        return real(step, plan) - 40_000

    monkeypatch.setattr(tested, "planned_peak", less)
    plan = tested.plan_tested(step, profile, budget_of(profile, 75))
    assert plan.predicted_overhead_ratio < exact.predicted_overhead_ratio
    assert plan.measured_peak_bytes == plan.predicted_peak_bytes <= plan.budget_bytes
    (note,) = plan.notes
    assert note.startswith("peaks predicted and measured, round by round: ") and "," in note
    found = verify_plan(step, plan, 1)
    assert found.gradients_equal and found.measured_peak_bytes == plan.measured_peak_bytes + 40_000


def test_one_round_is_not_worth_a_note() -> None:
    assert rounds_note([(1000, 900)]) == ()
    assert rounds_note([(1000, 1100), (900, 1000)]) == (
        "peaks predicted and measured, round by round: 1,000 B and 1,100 B, 900 B and 1,000 B",
    )
