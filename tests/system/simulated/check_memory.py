"""Memory as the allocator counts it: predicted, measured, and what others take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import planner
from planner.memory import allocator
from planner.memory.allocator import blocks_of, warm_libraries
from planner.memory.meter import meter_for
from planner.memory.peak import peak_of
from planner.memory.rounding import CUDA, Blocks
from planner.online.plan_recorded import UNSPLIT
from planner.units import MIB
from simulated.models import Apart, FromHost, gpt2, mixed_net, wide

SIM = torch.device("sim")
EXPANDABLE = "expandable_segments:True"


@pytest.fixture(params=["", EXPANDABLE])
def settings(request: pytest.FixtureRequest) -> Iterator[str]:
    """The allocator's settings, default ones or others."""
    torch._C._accelerator_setAllocatorSettings(request.param)
    yield request.param
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


@pytest.fixture
def never_asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As in a process in which no allocator was asked yet."""
    allocator._asked.cache_clear()
    return monkeypatch


def test_the_settings_in_force_tell_how_the_allocator_counts(settings: str) -> None:
    rule = blocks_of(SIM)
    assert rule == (Blocks(512, whole_pages=False) if settings else CUDA)
    for size in (1, MIB + 1, 10 * MIB, 11 * MIB + MIB // 2, 13 * MIB):
        torch.accelerator.empty_cache()
        before = torch.accelerator.memory_allocated()
        kept = torch.empty(size, dtype=torch.uint8, device=SIM)
        assert torch.accelerator.memory_allocated() - before == rule.counted(size), size
        del kept
    assert blocks_of(torch.device("cpu")) is None


def test_asking_the_allocator_leaves_its_cache_and_takes_next_to_nothing(never_asked) -> None:
    held = torch.empty(4 * MIB, dtype=torch.uint8, device=SIM)  # its segment has room for 16 more
    del held
    torch.accelerator.reset_peak_memory_stats()
    reserved, now = torch.accelerator.memory_reserved(), torch.accelerator.memory_allocated()
    assert blocks_of(SIM) == CUDA
    assert torch.accelerator.memory_reserved() >= reserved
    assert torch.accelerator.max_memory_allocated() <= now + 512


def test_a_full_device_is_asked_again(never_asked) -> None:
    def full(index: int) -> int:
        raise torch.OutOfMemoryError("simulated")

    held = torch.empty(1, device=SIM)
    with never_asked.context() as patch:
        patch.setattr(allocator, "_counted_for_a_byte", full)
        assert blocks_of(SIM) == CUDA
    never_asked.setattr(allocator, "_counted_for_a_byte", lambda index: 1024)
    assert blocks_of(SIM) == Blocks(1024, whole_pages=False)
    allocator._asked.cache_clear()
    del held


def test_the_meter_is_the_allocators_own() -> None:
    size, held = CUDA.counted(4_000_000), torch.accelerator.memory_allocated()
    x = torch.randn(1000, 1000, device=SIM)
    with meter_for(SIM) as meter:
        y = (x + 1) * 2
    assert meter.baseline_bytes == held + size
    assert meter.peak_bytes == torch.accelerator.max_memory_allocated() == held + 3 * size
    del y


def assert_kept(model: nn.Module, budget: str, **step: Any) -> planner.Plan:
    """Plan and verify; the plan must have been predicted to the byte."""
    plan = planner.plan(model, budget_mb=budget, **step)
    found = planner.verify(model, plan, repeats=1, **step)
    assert plan.segments and found.ok, found
    assert found.measured_peak_bytes == plan.measured_peak_bytes <= plan.budget_bytes
    assert plan.predicted_peak_bytes == plan.measured_peak_bytes
    return plan


@pytest.mark.parametrize("budget", ["85%", "50%"])
@pytest.mark.parametrize("make", [gpt2, mixed_net])
def test_a_plan_trains_the_same_within_its_budget(make, budget: str) -> None:
    model, inputs = make()
    assert_kept(model, budget, inputs=inputs)


def test_a_plan_counts_what_autocast_makes_and_gradients_that_stay() -> None:
    model, inputs = gpt2(2)

    def step(model: nn.Module) -> None:
        for _ in range(2):
            with torch.autocast("sim", dtype=torch.bfloat16):
                loss = model(**inputs).loss
            loss.backward()

    assert_kept(model, "65%", step=step)


def test_a_plan_counts_the_optimizer() -> None:
    model, inputs = gpt2(2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert_kept(model, "85%", inputs=inputs, optimizer=optimizer)


def test_large_tensors_count_in_pages(settings: str) -> None:
    model, x = wide(2**13, 368, 416)  # 11.5 MiB, all but a part of a page, and 13 MiB
    plan = planner.plan(model, budget_mb="60%", inputs=x)
    found = planner.verify(model, plan, inputs=x, repeats=1)
    assert plan.segments and found.ok
    assert found.measured_peak_bytes <= plan.predicted_peak_bytes


def test_memory_of_the_host_is_none_of_the_devices() -> None:
    model, x = FromHost().to(SIM), torch.randn(256, 64)

    def step(model: nn.Module) -> None:
        model(x).backward()

    profile = planner.profile(model, step=step)
    assert profile.plain_peak_bytes == peak_of(profile.storages, len(profile.ops))
    assert all(s.bytes == 0 for s in profile.storages if s.category == "input")
    assert_kept(model, "60%", step=step)
    capped = planner.plan(model, budget_mb="60%", step=step, search=planner.Capped())
    assert capped.predicted_peak_bytes == capped.measured_peak_bytes


def test_a_model_in_several_places_is_planned_for_its_first_device() -> None:
    model, ids = Apart(), torch.randint(100, (512,))
    plan = assert_kept(model, "70%", step=lambda model: model(ids).backward())
    ends = {boundary.unit for segment in plan.segments for boundary in (segment.start, segment.end)}
    assert all(unit == "table" or unit.startswith("first") for unit in ends)


def test_memory_of_the_host_is_none_of_the_devices_while_training() -> None:
    model, x = FromHost().to(SIM), torch.randn(256, 64)
    plain = planner.profile(model, step=lambda model: model(x).backward()).plain_peak_bytes
    peaks = []
    with planner.apply(model, budget_mb=0.7 * plain / MIB) as handle:
        for _ in range(3):
            model.zero_grad()
            with meter_for(SIM) as meter:
                model(x).backward()
            peaks.append(meter.peak_bytes)
        assert handle.plan is not None and handle.plan.segments
        assert peaks[1:] == [handle.plan.predicted_peak_bytes] * 2


def test_a_plan_made_while_training_knows_the_settings(settings: str) -> None:
    model, x = wide(2**11, 160, 344)  # 1.25 and 2.7 MiB
    plain = planner.profile(model, inputs=x).plain_peak_bytes
    with planner.apply(model, budget_mb=0.7 * plain / MIB) as handle:
        for _ in range(2):
            model.zero_grad()
            with meter_for(SIM) as meter:
                model(x).backward()
        plan = handle.plan
    assert plan is not None and plan.segments
    assert (UNSPLIT in plan.notes) == (settings != EXPANDABLE)
    if settings == EXPANDABLE:
        assert meter.peak_bytes == plan.predicted_peak_bytes


def test_libraries_have_all_they_keep_before_anything_is_measured() -> None:
    layers = (nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(8))
    model = nn.Sequential(*layers)
    model, x = model.to(SIM), torch.randn(2048, 32, device=SIM)
    warm_libraries(SIM)
    before = torch.accelerator.memory_allocated()
    assert_kept(model, "80%", inputs=x)
    assert torch.accelerator.memory_allocated() == before


def test_what_else_is_on_the_device_counts() -> None:
    model, inputs = gpt2()
    alone = planner.profile(model, inputs=inputs).plain_peak_bytes
    other = nn.Linear(300, 300).to(SIM)
    assert planner.profile(model, inputs=inputs).plain_peak_bytes > alone
    del other
