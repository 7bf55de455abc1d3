"""The model of `scripts/ckpt_mem.py`: 16 x (Linear, ReLU), its input requiring a gradient.

The known numbers are those of width 1024 and 4096 rows. Tests run at a sixteenth of every byte
(width 256, 1024 rows; only biases differ), or on the meta device, where sizes are real and nothing
is computed; one slow test runs the real thing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from zoo import Trained, step_on, train_once

import planner
from planner.memory.meter import meter_for, step_tensors
from planner.training_step.fingerprint import fingerprint
from planner.units import MIB

PAIRS = 16
SCALE = 16
BUDGETS = {300: 4, 250: 7, 240.1: 8}
"""Budget in MiB at full size, and the most Linears that may be replayed."""


def build(width: int, rows: int, device: str = "cpu") -> tuple[nn.Sequential, Tensor]:
    """Return the model and its input."""
    torch.manual_seed(0)
    layers = [m for _ in range(PAIRS) for m in (nn.Linear(width, width), nn.ReLU())]
    x = torch.randn(rows, width, device=device, requires_grad=True)
    return nn.Sequential(*layers).to(device), x


def scaled() -> tuple[nn.Sequential, Tensor]:
    """Return the model with a sixteenth of the bytes."""
    return build(256, 1024)


def scaled_budget(budget_mb: float) -> str:
    """Return the budget for the scaled model."""
    return f"{int(budget_mb * MIB / SCALE)}B"


@pytest.fixture(scope="module")
def profile() -> planner.Profile:
    """The scaled model's profile."""
    model, x = scaled()
    return planner.profile(model, inputs=(x,), loss_fn=torch.sum)


def peak_of_step(model: nn.Module, x: Tensor) -> int:
    """Return the most live bytes of one step, whose output goes once the loss exists."""
    model.zero_grad(set_to_none=True)
    x.grad = None
    with meter_for(x.device, step_tensors(model, inputs=(x,))) as meter:
        model(x).sum().backward()
    return meter.peak_bytes


def plain_and_planned(
    model: nn.Module, x: Tensor, plan: planner.Plan
) -> tuple[Trained, Trained, int, list[Tensor]]:
    """Run the step plain and planned; return both, the calls of all layers, and x's gradients."""
    plain = train_once(model, step_on(x))
    gradients, x.grad = [x.grad], None
    calls: list[nn.Module] = []
    hooks = [m.register_forward_pre_hook(lambda m, _: calls.append(m)) for m in model]
    with planner.apply(model, plan):
        planned = train_once(model, step_on(x))
    for hook in hooks:
        hook.remove()
    gradients.append(x.grad)
    x.grad = None
    return plain, planned, len(calls), gradients


@pytest.mark.parametrize(("budget_mb", "most"), BUDGETS.items())
def test_plan_meets_the_budget_with_few_linears(
    budget_mb: float, most: int, profile: planner.Profile
) -> None:
    model, x = scaled()
    plan = planner.plan(model, budget_mb=scaled_budget(budget_mb), profile=profile)
    plain, planned, calls, x_gradients = plain_and_planned(model, x, plan)
    assert planned.same_as(plain)
    assert torch.equal(*x_gradients)
    assert calls == 2 * PAIRS  # every layer's forward ran once
    assert 0 < planned.counts["addmm"] - plain.counts["addmm"] <= most
    with planner.apply(model, plan):
        assert peak_of_step(model, x) == plan.predicted_peak_bytes <= plan.budget_bytes


def test_plan_with_inputs_is_measured() -> None:
    model, x = scaled()
    plan = planner.plan(model, budget_mb=scaled_budget(300), inputs=(x,), loss_fn=torch.sum)
    verified = planner.verify(model, plan, inputs=(x,), loss_fn=torch.sum, repeats=1)
    assert verified.ok and verified.gradients_equal
    assert verified.measured_peak_bytes == plan.measured_peak_bytes <= int(300 * MIB / SCALE)
    assert set(verified.forward_runs.values()) == {1}


def test_smallest_reachable_peak_is_below_240(profile: planner.Profile) -> None:
    model, x = scaled()
    with pytest.raises(planner.InfeasibleBudgetError) as caught:
        planner.plan(model, budget_mb=scaled_budget(100), profile=profile)
    floor_bytes = caught.value.min_peak_bytes
    assert floor_bytes * SCALE < 240 * MIB
    plan = planner.plan(model, budget_mb=f"{floor_bytes}B", profile=profile)
    with planner.apply(model, plan):
        assert peak_of_step(model, x) <= floor_bytes


def test_more_room_never_costs_more(profile: planner.Profile) -> None:
    model, _ = scaled()
    overheads = [
        planner.plan(model, budget_mb=scaled_budget(mb), profile=profile).predicted_overhead_ratio
        for mb in (220, 230, 240, 250, 275, 300, 340, 371, 373)
    ]
    assert overheads == sorted(overheads, reverse=True)
    assert overheads[-1] == 0


@pytest.mark.parametrize("budget_mb", BUDGETS)
def test_full_size_peak_on_the_meta_device(budget_mb: float, profile: planner.Profile) -> None:
    model, x = build(1024, 4096, "meta")
    plan = full_size_plan(model, budget_mb, profile)
    with planner.apply(model, plan):
        assert [peak_of_step(model, x) <= budget_mb * MIB for _ in range(2)] == [True, True]


@pytest.mark.nightly
def test_full_size(profile: planner.Profile) -> None:
    model, x = build(1024, 4096)
    plan = full_size_plan(model, 300, profile)
    plain, planned, calls, x_gradients = plain_and_planned(model, x, plan)
    assert planned.same_as(plain) and torch.equal(*x_gradients)
    assert calls == 2 * PAIRS
    assert 0 < planned.counts["addmm"] - plain.counts["addmm"] <= BUDGETS[300]
    with planner.apply(model, plan):
        assert peak_of_step(model, x) <= 300 * MIB


def full_size_plan(model: nn.Module, budget_mb: float, profile: planner.Profile) -> planner.Plan:
    """Return the plan of the scaled model for the full one: the same units, other widths."""
    small, _ = scaled()
    plan = planner.plan(small, budget_mb=scaled_budget(budget_mb), profile=profile)
    return replace(plan, fingerprint=fingerprint(model))
