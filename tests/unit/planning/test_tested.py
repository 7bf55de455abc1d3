"""Closing the loop: every round asks for another plan, and rounds that would not end at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.applier.segments import segment_name
from planner.documents import Exclusion, Plan, Profile
from planner.errors import InfeasibleBudgetError, ReplayError
from planner.graph import Graph
from planner.planning import tested
from planner.planning.exclusions import exclusions_for
from planner.planning.offline import from_profile
from planner.planning.probe import Fault
from planner.planning.tested import plan_tested
from planner.profiler.build import build_profile
from planner.replay import content
from planner.training_step.step import Step, make_step
from planner.verifier import verify_plan

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")

WIDTH = 16


class Hidden(torch.autograd.Function):
    """Fills memory that torch believes to hold zeros: a replay gives zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        filled = np.sin(x.detach().numpy())
        address = y.untyped_storage().data_ptr()  # as C++ code: `Tensor.data_ptr` is noticed
        ctypes.memmove(address, filled.ctypes.data, filled.nbytes)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].cos()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).tanh())


class Between(nn.Module):
    """Its own code, between two blocks, is what cannot be replayed."""

    def __init__(self, part: Callable[[], nn.Module], hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.parts, self.hidden = nn.ModuleList(part() for _ in range(4)), hidden
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for number, part in enumerate(self.parts):
            x = part(x)
            x = Hidden.apply(x) if number in self.hidden else x
            x = x.tanh().exp().sin()
        return x


class Unsteady(nn.Module):
    """Runs one unit in its second call of a step only."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Block() for _ in range(3))
        self.extra = Extra()

    def forward(self, x: Tensor, more: bool) -> Tensor:
        for number, part in enumerate(self.parts):
            x = part(x)
            x = self.extra(x) if more and not number else x
            x = x.tanh().exp().sin()
        return x


class Extra(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = Hidden.apply(x)
        return (y.exp().sin() * y).tanh()


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looking at content, as on devices where looking is not cheap."""
    monkeypatch.setattr(content, "_sum", lambda tensor: 0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Plan]]:
    """The plans that are probed and those that are measured."""
    seen: dict[str, list[Plan]] = {"probe": [], "planned_peak": []}
    for name, plans in seen.items():
        run = getattr(tested, name)

        def noting(step: Step, plan: Plan, run: Any = run, plans: list[Plan] = plans) -> Any:
            plans.append(plan)
            return run(step, plan)

        monkeypatch.setattr(tested, name, noting)
    return seen


def step_of(model: nn.Module) -> Step:
    x = torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(0))
    return make_step(model, inputs=x)


def profile_of(step: Step) -> Profile:
    """A profile in which all ops take the same time, so that the search finds the same plans."""
    profile = build_profile(step)
    return replace(profile, ops=tuple(replace(op, time_ns=10_000) for op in profile.ops))


def part_of(profile: Profile, percent: int) -> int:
    return profile.plain_peak_bytes * percent // 100


def all_differ(plans: list[Plan]) -> bool:
    return len({plan.segments for plan in plans}) == len(plans)


def test_a_replay_that_no_exclusion_mends_ends_the_rounds(
    blind: None, runs: dict[str, list[Plan]]
) -> None:
    step = step_of(Between(nn.Identity, (0, 1, 2, 3)))
    profile = profile_of(step)
    with pytest.raises(ReplayError) as raised:
        plan_tested(step, profile, part_of(profile, 80))
    assert len(runs["probe"]) == 1
    error = raised.value
    assert error.unit in error.what and type(step.model).__name__ in error.what
    assert "its replay differs: aten." in error.numbers and "left out: none" in error.numbers
    assert error.cause and error.fix


def test_no_budget_is_called_reachable_where_replays_are_wrong(blind: None) -> None:
    step = step_of(Between(nn.Identity, (0, 1, 2, 3)))
    profile = profile_of(step)
    with pytest.raises(InfeasibleBudgetError) as raised:
        plan_tested(step, profile, part_of(profile, 30))
    lowest = raised.value.min_peak_bytes
    assert lowest == plan_tested(step, profile, lowest).measured_peak_bytes


@pytest.mark.parametrize("percent", [80, 75])
def test_units_of_the_segment_at_fault_are_left_out_and_a_plan_is_found(
    percent: int, blind: None, runs: dict[str, list[Plan]]
) -> None:
    step = step_of(Between(Block, (0,)))
    profile = profile_of(step)
    plan = plan_tested(step, profile, part_of(profile, percent))
    assert all_differ(runs["probe"])
    assert plan.segments and verify_plan(step, plan, 1).ok
    (exclusion,) = plan.exclusions
    assert exclusion.unit.startswith("parts.") and "(./" in exclusion.reason


def test_a_unit_that_the_search_does_not_see_is_named_and_another_left_out(
    blind: None, runs: dict[str, list[Plan]]
) -> None:
    x = torch.randn(512, WIDTH)

    def twice(model: nn.Module) -> None:
        (model(x, False).sum() + model(x, True).sum()).backward()

    step = make_step(Unsteady(), step=twice)
    profile = profile_of(step)
    with pytest.raises(InfeasibleBudgetError) as raised:
        plan_tested(step, profile, part_of(profile, 60))
    assert all_differ(runs["probe"])
    first, second, *_ = runs["probe"]
    assert not first.exclusions
    extra, other = second.exclusions
    assert extra.unit == "extra" and other.unit.startswith("parts.")
    assert "extra/" in other.reason
    assert "since replays are wrong: extra, parts." in raised.value.cause
    assert plan_tested(step, profile, raised.value.min_peak_bytes).segments


def test_only_what_changes_the_plan_is_left_out() -> None:
    step = step_of(Between(Block, ()))
    graph = Graph.of(profile_of(step))
    plan = from_profile(graph.profile, part_of(graph.profile, 50), graph=graph)
    segment = plan.segments[0]
    label = segment_name(segment)
    assert segment.start.unit != segment.end.unit

    def left_out(unit: str, label: str = label) -> list[str]:
        return [e.unit for e in exclusions_for(graph, plan, [Fault(label, unit, "why")])]

    (usual,) = left_out("")
    assert usual.startswith("parts.")
    assert left_out(usual) == [usual]
    assert left_out("no.such.unit") == ["no.such.unit", usual]
    assert left_out("", "no such segment") == []


def best(graph: Graph, budget_bytes: int, exclusions: list[Exclusion]) -> Plan:
    """The plan for a budget, or the lowest one."""
    try:
        return from_profile(graph.profile, budget_bytes, exclusions=exclusions, graph=graph)
    except InfeasibleBudgetError as error:
        return best(graph, error.min_peak_bytes, exclusions)


@pytest.mark.parametrize("percent", [40, 50, 60, 75])
def test_each_exclusion_changes_the_plan(percent: int) -> None:
    """Where every replay is wrong and nothing tells why, each round brings another plan."""
    graph = Graph.of(profile_of(step_of(Between(Block, (1,)))))
    budget = part_of(graph.profile, percent)
    plans, exclusions = [best(graph, budget, [])], list[Exclusion]()
    while plans[-1].segments:
        faults = [Fault(segment_name(segment), "", "why") for segment in plans[-1].segments]
        found = exclusions_for(graph, plans[-1], faults)
        if not found:
            break
        exclusions += found
        plans.append(best(graph, budget, exclusions))
    assert len(plans) > 2 and all_differ(plans)
    assert len({e.unit for e in exclusions}) == len(exclusions)


def test_a_miss_rules_the_plan_out_at_once(
    monkeypatch: pytest.MonkeyPatch, runs: dict[str, list[Plan]]
) -> None:
    """A plan with room below the budget may miss it by a byte: the same plan is no answer."""
    step = step_of(Between(Block, ()))
    profile = profile_of(step)
    budget = part_of(profile, 60)
    first = from_profile(profile, budget)
    miss = budget - first.predicted_peak_bytes + 1
    assert miss > 1

    def peak(step: Step, plan: Plan) -> int:
        runs["planned_peak"].append(plan)
        return plan.predicted_peak_bytes + miss

    monkeypatch.setattr(tested, "planned_peak", peak)
    plan = plan_tested(step, profile, budget)
    assert [p.segments for p in runs["planned_peak"]] == [first.segments, plan.segments]
    assert plan.measured_peak_bytes == plan.predicted_peak_bytes + miss <= budget


def test_the_lowest_plan_is_measured_before_a_budget_is_called_infeasible(
    monkeypatch: pytest.MonkeyPatch, runs: dict[str, list[Plan]]
) -> None:
    step = step_of(Between(Block, ()))
    profile = profile_of(step)
    floor = from_profile(profile, profile.plain_peak_bytes).floor_bytes
    assert floor is not None
    budget = part_of(profile, 60)

    def peak(step: Step, plan: Plan) -> int:
        lowest = plan.predicted_peak_bytes == floor
        return plan.predicted_peak_bytes if lowest else 2 * profile.plain_peak_bytes

    monkeypatch.setattr(tested, "planned_peak", peak)
    plan = plan_tested(step, profile, budget)
    assert plan.measured_peak_bytes == plan.predicted_peak_bytes == floor


def test_nothing_is_run_twice_on_the_way_to_an_infeasible_budget(
    runs: dict[str, list[Plan]],
) -> None:
    step = step_of(Between(Block, ()))
    profile = profile_of(step)
    with pytest.raises(InfeasibleBudgetError):
        plan_tested(step, profile, part_of(profile, 10))
    assert all_differ(runs["probe"]) and all_differ(runs["planned_peak"])
