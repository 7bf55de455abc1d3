"""A device that is too small for the plain step: plan, verify and train all the same."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import planner
import simulated
from planner.planning.capped import BY_DIGEST, RAN_OUT
from simulated.models import gpt2, mixed_net

KEPT = 8 * 2**20  # what an allocator that reserves pages may hold and not use


def small_device(model: nn.Module, inputs, share: float) -> int:
    """Leave this share of what the plain step takes, beyond the model; returns the capacity."""
    torch.accelerator.reset_peak_memory_stats()
    held = torch.accelerator.memory_allocated()
    plain = planner.profile(model, inputs=inputs).plain_peak_bytes
    size = held + int((plain - held) * share) + KEPT
    gc.collect()
    torch.accelerator.empty_cache()
    simulated.build().set_capacity(size)
    return size


@pytest.mark.parametrize("make", [lambda: gpt2(layers=2, batch=32), lambda: mixed_net(batch=200)])
def test_planned_verified_and_trained_where_the_plain_step_runs_out(make) -> None:
    model, inputs = make()
    size = small_device(model, inputs, 0.6)
    step = (lambda m: m(**inputs).loss) if isinstance(inputs, dict) else (lambda m: m(inputs))
    with pytest.raises(torch.OutOfMemoryError):
        step(model).backward()
    model.zero_grad()
    plan = planner.plan(model, budget_mb=f"{size - KEPT}B", inputs=inputs)
    assert plan.segments and plan.notes[:2] == (RAN_OUT, BY_DIGEST)
    found = planner.verify(model, plan, inputs=inputs)
    assert found.ok and found.plain_peak_bytes is None and found.overhead_ratio is None
    assert found.measured_peak_bytes <= plan.budget_bytes < size
    assert found.measured_peak_bytes <= found.reserved_bytes <= size
    assert "ran out of memory" in str(found) and "replays        equal bit for bit" in str(found)
    with planner.apply(model, plan):
        for _ in range(3):
            torch.accelerator.reset_peak_memory_stats()
            step(model).backward()
            model.zero_grad()
            assert torch.accelerator.max_memory_allocated() <= plan.budget_bytes


def test_what_the_allocator_holds_is_told_beside_the_peak() -> None:
    model, inputs = gpt2()
    found = planner.verify(
        model, planner.plan(model, budget_mb="60%", inputs=inputs), inputs=inputs
    )
    assert found.reserved_bytes > found.measured_peak_bytes
    assert "of it unused, in pieces)" in str(found)


def test_on_the_fly_a_loop_trains_the_same_within_its_budget() -> None:
    def losses(budget_bytes: int | None) -> list[tuple[float, int]]:
        torch.manual_seed(0)
        model, inputs = gpt2(batch=16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if budget_bytes is not None:
            planner.apply(model, budget_mb=f"{budget_bytes}B")
        found = []
        for _ in range(4):
            torch.accelerator.reset_peak_memory_stats()
            optimizer.zero_grad()
            loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
            found.append((loss.item(), torch.accelerator.max_memory_allocated()))
        return found

    plain = losses(None)
    budget = plain[-1][1] * 6 // 10
    planned = losses(budget)
    assert [loss for loss, _ in planned] == [loss for loss, _ in plain]
    assert max(peak for _, peak in planned) <= budget
