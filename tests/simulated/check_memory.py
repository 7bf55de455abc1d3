"""Memory as the allocator counts it: predicted, measured, and what others take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import planner
from planner.profiler.allocator import blocks_of
from planner.profiler.blocks import CUDA
from planner.profiler.meter import meter_for
from simulated.models import gpt2, mixed_net

SIM = torch.device("sim")


def test_the_allocator_tells_its_rule_with_anything_on_the_device() -> None:
    held = [torch.empty(size, device=SIM) for size in (10, 2**20, 3 * 2**20)]
    assert blocks_of(SIM) == CUDA
    assert held and blocks_of(torch.device("cpu")) is None


def test_the_meter_is_the_allocators_own() -> None:
    x = torch.randn(1000, 1000, device=SIM)
    with meter_for(SIM) as meter:
        y = (x + 1) * 2
    assert meter.baseline_bytes == CUDA.counted(4_000_000)
    assert meter.peak_bytes == torch.accelerator.max_memory_allocated() == 3 * meter.baseline_bytes
    del y


@pytest.mark.parametrize("budget", ["85%", "60%", "45%"])
@pytest.mark.parametrize("make", [gpt2, mixed_net])
def test_a_plan_trains_the_same_within_its_budget(make, budget: str) -> None:
    model, inputs = make()
    plan = planner.plan(model, budget_mb=budget, inputs=inputs)
    found = planner.verify(model, plan, inputs=inputs, repeats=1)
    assert plan.segments and found.ok, found
    assert found.measured_peak_bytes == plan.measured_peak_bytes


def test_what_else_is_on_the_device_counts() -> None:
    model, inputs = gpt2()
    alone = planner.profile(model, inputs=inputs).plain_peak_bytes
    other = nn.Linear(300, 300).to(SIM)
    assert planner.profile(model, inputs=inputs).plain_peak_bytes > alone
    del other
