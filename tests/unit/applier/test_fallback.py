"""The fallback runtime: torch's checkpoint where replay cannot serve and running again is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import planner
from planner.applier.apply import apply, manual_plan
from planner.training_step.step import make_step
from planner.verifier import verify_plan


class Outside(torch.autograd.Function):
    """Fills its result where no dispatcher sees it, over content that a seen op wrote."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        y.detach().numpy()[...] = np.tanh(x.detach().numpy())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class Block(nn.Module):
    def __init__(self, counts_calls: bool = False) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(32, 128), nn.Linear(128, 32)
        self.counts_calls = counts_calls
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.counts_calls:
            self.calls += 1
        return x + self.out(Outside.apply(self.fc(x)))


def net(**options: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(**options) for _ in range(4)))


X = torch.randn(1024, 32)


def test_checkpoint_segments_train_the_same_and_hold_less() -> None:
    model = net()
    plan = manual_plan(model, ["0", "1", "2", "3"], runtime="checkpoint")
    found = verify_plan(make_step(model, inputs=X), plan)
    assert found.gradients_equal and found.outputs_equal and found.buffers_equal
    assert found.measured_peak_bytes < found.plain_peak_bytes
    assert found.replayed_ops == 0 and found.forward_runs["0"] == 2


def test_a_checkpoint_segment_survives_an_error_in_forward() -> None:
    model = net()
    with apply(model, manual_plan(model, ["1"], runtime="checkpoint")):
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 5))
        model(X).sum().backward()
    assert model[0].fc.weight.grad is not None


def test_where_replay_sees_nothing_the_fallback_meets_the_budget() -> None:
    model = net()
    plan = planner.plan(model, budget_mb="75%", inputs=X)
    reasons = [e.reason for e in plan.exclusions]
    assert reasons and all("no recorded op made" in reason for reason in reasons)
    assert any(s.runtime == "checkpoint" for s in plan.segments)
    assert any("torch's checkpoint is used" in reason for reason in reasons)
    found = planner.verify(model, plan, inputs=X)
    assert found.ok and found.measured_peak_bytes <= plan.budget_bytes


def test_the_fallback_is_not_used_where_running_again_changes_a_buffer() -> None:
    model = net(counts_calls=True)
    with pytest.raises(planner.InfeasibleBudgetError) as raised:
        planner.plan(model, budget_mb="60%", inputs=X)
    lowest = raised.value.min_peak_bytes
    plan = planner.plan(model, budget_mb=lowest / 2**20, inputs=X)
    assert all(s.runtime == "replay" for s in plan.segments)
    assert planner.verify(model, plan, inputs=X).ok
