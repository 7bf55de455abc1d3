"""Ops outside aten are replayed where that is proved right, and else run once and stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import custom_ops
import pytest
import torch
from custom_ops import LIBRARY, Frozen, Gated, Raw, runs
from engine_runs import assert_same, give_up, train
from torch import Tensor, nn

import planner
from planner.replay import custom_ops as rules

WIDTH = 32
REFUSED = {
    "announce": "has an ordered effect",
    "write_argument": "writes an argument, and its schema does not say so",
    "write_scratch": "writes memory that it did not make",
    "count_up": "gives other bits when it runs again",
    "return_argument": "returns an argument, or a view of one, and its schema does not say so",
}
REPLAYED = ("scale", "draw", "draw_tagged", "draw_for_nothing")

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rules, "_vouched", set())
    runs.clear()
    yield


def net(kind: Any, *args: Any) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(kind(WIDTH, *args) for _ in range(4)))


def inputs(batch: int = 64) -> tuple[Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return (torch.randn(batch, WIDTH, generator=generator).requires_grad_(),)


def smallest(model: nn.Module, **wishes: Any) -> planner.Plan:
    """The plan for the smallest peak that is reached."""
    x = inputs()[0]
    with pytest.raises(planner.InfeasibleBudgetError) as refused:
        planner.plan(model, budget_mb=2**-10, inputs=x, **wishes)
    floor = refused.value.min_peak_bytes
    return planner.plan(model, budget_mb=floor / 2**20, inputs=x, **wishes)


def said_of(plan: planner.Plan, name: str) -> tuple[bool, str]:
    (found,) = (op for op in plan.custom_ops if op.name == f"{LIBRARY}::{name}")
    return found.replayable, found.reason


def trained_the_same(model: nn.Module, plan: planner.Plan) -> int:
    """Check that three planned steps are plain ones, bit for bit; returns the ops replayed."""
    plain, _ = train(model, inputs, (64, 64, 64))
    runs.clear()
    planned, handle = train(model, inputs, (64, 64, 64), lambda m: planner.apply(m, plan))
    assert_same(plain, planned)
    assert handle is not None
    return int(handle.replayed_ops)


def test_dequantized_weights_are_replayed() -> None:
    model = net(Frozen)
    plan = smallest(model)
    assert said_of(plan, "dequantize") == (True, "gives the same bits when it runs again")
    assert trained_the_same(model, plan) > 0
    assert runs["dequantize"] > 3 * 4  # more often than in three plain steps
    found = planner.verify(model, plan, inputs=inputs()[0], repeats=1)
    assert found.ok and found.measured_peak_bytes <= plan.budget_bytes


def test_a_fused_op_with_a_backward_of_its_own_is_replayed() -> None:
    model = net(Gated)
    plan = smallest(model)
    assert said_of(plan, "gate")[0]
    assert trained_the_same(model, plan) > 0
    assert runs["gate"] > 3 * 4
    without = smallest(model, never=(f"{LIBRARY}::gate",))
    assert plan.budget_bytes < without.budget_bytes


@pytest.mark.parametrize("name", REPLAYED)
def test_an_op_that_repeats_itself_is_replayed(name: str) -> None:
    model = net(Raw, name)
    plan = smallest(model)
    assert said_of(plan, name)[0]
    assert trained_the_same(model, plan) > 0
    assert runs[name] > 3 * 4


@pytest.mark.parametrize("name", REFUSED)
def test_an_op_that_does_not_runs_once(name: str) -> None:
    model = net(Raw, name)
    plan = smallest(model)
    assert said_of(plan, name) == (False, REFUSED[name])
    x = inputs()[0]
    with planner.apply(model, plan) as handle:
        runs.clear()
        for _ in range(3):
            model(x).sum().backward()
        assert handle.replayed_ops > 0
    assert runs[name] == 3 * 4


def test_effects_happen_once_in_their_order() -> None:
    seen: list[int] = []

    class Announced(Raw):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(runs["announce"])
            return super().forward(x)

    model = net(Announced, "announce")
    plan = smallest(model)
    seen.clear()
    trained_the_same(model, plan)
    assert seen[-12:] == list(range(12))


def test_an_op_pinned_with_never_stays() -> None:
    model = net(Frozen)
    plan = smallest(model, never=(f"{LIBRARY}::dequantize",))
    assert plan.pins.never == (f"{LIBRARY}::dequantize",)
    trained_the_same(model, plan)
    assert runs["dequantize"] == 3 * 4
    again = planner.Plan.from_json(plan.to_json())
    assert again == plan
    trained_the_same(model, again)
    assert runs["dequantize"] == 3 * 4


def test_an_aten_op_pinned_with_never_stays() -> None:
    model = net(Raw, "scale")
    plan = smallest(model, never=("aten::tanh",))
    assert trained_the_same(model, plan) > 0
    assert plan.budget_bytes > smallest(model).budget_bytes


def test_never_names_an_op_of_the_step() -> None:
    with pytest.raises(planner.InvalidInputsError, match="planner_custom::gates"):
        planner.plan(
            net(Gated), budget_mb="80%", inputs=inputs()[0], never=("planner_custom::gates",)
        )


def test_by_hand_an_op_is_replayed_when_it_is_registered() -> None:
    model = net(Gated)
    plain, _ = train(model, inputs, (64, 64))
    runs.clear()
    planned, _ = train(model, inputs, (64, 64), give_up("0", "1", "2", "3"))
    assert_same(plain, planned)
    assert runs["gate"] == 2 * 4
    planner.register_replayable(f"{LIBRARY}::gate")
    runs.clear()
    planned, _ = train(model, inputs, (64, 64), give_up("0", "1", "2", "3"))
    assert_same(plain, planned)
    assert runs["gate"] == 2 * 4 * 2


def test_a_registered_op_with_memory_of_its_own_is_replayed() -> None:
    planner.register_replayable(f"{LIBRARY}::write_scratch")
    model = net(Raw, "write_scratch")
    plan = smallest(model)
    assert said_of(plan, "write_scratch") == (True, "was registered as replayable")
    assert trained_the_same(model, plan) > 0


@pytest.mark.parametrize("name", ["write_argument", "count_up"])
def test_registering_does_not_make_an_op_repeat_itself(name: str) -> None:
    planner.register_replayable(f"{LIBRARY}::{name}")
    assert said_of(smallest(net(Raw, name)), name) == (False, REFUSED[name])


@pytest.mark.parametrize("name", ["gate", "lib::", "::gate", "lib::gate.default", "a b::c"])
def test_what_is_no_ops_name_cannot_be_registered(name: str) -> None:
    with pytest.raises(planner.InvalidInputsError, match="is no op's name"):
        planner.register_replayable(name)


@pytest.mark.parametrize("name", [f"{LIBRARY}::announce", "c10d::send", "aten::add_"])
def test_what_is_never_replayed_cannot_be_registered(name: str) -> None:
    with pytest.raises(planner.InvalidInputsError, match="cannot be replayed"):
        planner.register_replayable(name)


def test_on_the_fly_only_registered_ops_are_replayed() -> None:
    x = inputs()[0]
    counts = []
    for registered in (False, True):
        if registered:
            planner.register_replayable(f"{LIBRARY}::gate")
        model = net(Gated)
        runs.clear()
        with planner.apply(model, budget_mb=0.6):
            for _ in range(2):
                model(x).sum().backward()
        counts.append(runs["gate"])
    assert counts[0] == 2 * 4 < counts[1]


class Square(torch.autograd.Function):
    """A kernel that torch cannot see, on what ops before it made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y.detach().numpy()[...] = x.detach().numpy() ** 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return grad * (2 * x + 0 * y)


class Unseen(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        feed = self.up(x).sin().exp().tanh()  # given up, but for what the kernel itself saves
        return x + self.down(Square.apply(feed))


def test_what_feeds_a_kernel_out_of_sight_is_given_up() -> None:
    model = net(Unseen)
    plan = planner.plan(model, budget_mb="80%", inputs=inputs()[0])
    assert {segment.runtime for segment in plan.segments} == {"replay"}
    assert trained_the_same(model, plan) > 0
    assert plan.measured_peak_bytes is not None
    assert plan.measured_peak_bytes <= plan.budget_bytes


def test_a_vetted_step_leaves_the_training_as_it_was() -> None:
    model = net(Raw, "draw")
    x = inputs()[0]
    state = torch.get_rng_state()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    planner.profile(model, inputs=x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_custom_ops_are_in_plans_and_profiles() -> None:
    model = net(Raw, "announce")
    profile = planner.profile(model, inputs=inputs()[0])
    assert planner.Profile.from_json(profile.to_json()) == profile
    assert [op.name for op in profile.custom_ops] == [f"{LIBRARY}::announce"]
    plan = planner.plan(model, budget_mb="90%", profile=profile)
    assert plan.custom_ops == profile.custom_ops
    assert "has an ordered effect" in str(plan)
    assert custom_ops.LIBRARY in str(plan)
