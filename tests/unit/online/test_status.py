"""What a handle says of the steps that run under it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import planner
from planner.applier.manual import manual_plan

pytestmark = pytest.mark.usefixtures("no_warnings")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))


def train(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.randn(256, 32)).square().mean().backward()


def test_a_plan_that_was_applied() -> None:
    model = net()
    handle = planner.apply(model, manual_plan(model, ["0", "1"]))
    train(model)
    assert str(handle.status) == "planned: 2 segments"
    shown = f"{handle.replayed_ops} ops replayed; engine: {handle.engine}"
    assert repr(handle) == f"<planner: planned: 2 segments; {shown}>"
    handle.remove()
    assert handle.status.state == "removed"


def test_a_loop_that_is_planned_while_it_trains() -> None:
    model = net()
    plain = planner.profile(model, step=train).plain_peak_bytes
    handle = planner.apply(model, budget_mb=f"{plain * 9 // 10}B")
    assert handle.status.state == "waiting"
    train(model)
    assert handle.status.state == "recording"
    for _ in range(2):
        train(model)
    assert handle.status.state == "planned" and "\n" not in repr(handle)
    handle.remove()
    assert handle.status.state == "removed"


def test_a_budget_that_cannot_be_met_is_the_reason() -> None:
    model = net()
    with planner.apply(model, budget_mb="1KB") as handle:
        for _ in range(3):
            train(model)
        assert handle.status.state == "recomputing" and "budget" in handle.status.reason
