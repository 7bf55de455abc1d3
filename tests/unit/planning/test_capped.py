"""Planning within the budget: the plain step never runs, not even to make the plan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from daily import nightly_but
from torch import nn

import planner
from planner.documents import Pins, Plan
from planner.errors import InfeasibleBudgetError, PlannerError, ReplayError, StepError
from planner.graph import Graph
from planner.memory.allocator import ran_out_of_memory
from planner.memory.meter import CpuMeter, meter_for, step_tensors
from planner.planning.capped import (
    BY_DIGEST,
    NEVER,
    NO_FORWARD,
    RAN_OUT,
    UNMEASURED,
    _Capped,
    _CappedRuns,
)
from planner.planning.offline import from_profile
from planner.planning.refine import Faulty, Fits, SearchAgain
from planner.profiler.build import build_profile
from planner.replay import generators, tape
from planner.training_step.step import Step, make_step
from planner.verifier.measure import measure_peak

MIB = 1024**2


class Block(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return found


def stack() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*(Block(32) for _ in range(6))), torch.randn(256, 32)


def peak_of(model: nn.Module, x: torch.Tensor) -> int:
    model.zero_grad(set_to_none=True)
    with meter_for("cpu", step_tensors(model, None, (x,))) as meter:
        loss = model(x).sum()
        loss.backward()
    return meter.peak_bytes


class CappedMeter(CpuMeter):
    """A device with so much memory: running out raises what an allocator raises."""

    def __init__(self, tracked: Iterable[torch.Tensor], cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes
        super().__init__(tracked)

    def count(self, tensors: Iterable[Any]) -> None:
        super().count(tensors)
        if self.live_bytes > self.cap_bytes:
            raise torch.OutOfMemoryError(f"{self.live_bytes} B of {self.cap_bytes} B")


@contextmanager
def device_of(cap_bytes: int) -> Iterator[list[int]]:
    """Let no step take more than a cap, profiling included; yields the peaks that were reached."""
    peaks: list[int] = []
    run = Step.run

    def metered(step: Step, **arguments: Any) -> Any:
        tracked = step_tensors(step.model, step.optimizer, step.input_tensors)
        with CappedMeter(tracked, cap_bytes) as meter:
            found = run(step, **arguments)
        peaks.append(meter.peak_bytes)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "run", metered)
        yield peaks


def train_within(model: nn.Module, inputs: Any, cap_bytes: int) -> None:
    """Run one step on a device of a cap."""
    tensors = tuple(inputs.values()) if isinstance(inputs, dict) else (inputs,)
    with CappedMeter(step_tensors(model, None, tensors), cap_bytes):
        zoo.step_on(inputs)(model)


def test_no_run_exceeds_the_budget() -> None:
    model, x = stack()
    plain = peak_of(model, x)
    budget = plain * 6 // 10
    with device_of(budget) as peaks:
        plan = planner.plan(model, budget_mb=f"{budget}B", inputs=x, search=planner.Capped())
    assert plan.measured_peak_bytes == plan.predicted_peak_bytes
    assert plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= budget < plain
    assert plan.plain_peak_bytes == plain
    assert 0 < max(peaks) <= budget
    assert plan.notes == (NEVER, BY_DIGEST)
    with planner.apply(model, plan):
        assert peak_of(model, x) <= budget


@pytest.mark.parametrize("make", nightly_but([zoo.gpt2], [zoo.gpt2, zoo.llama]))
def test_a_transformer_that_does_not_fit_is_planned_and_trained_under_a_cap(make: Any) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs = make(layers=3)
    step = make_step(model.train(), inputs=inputs)
    cap = measure_peak(step) * 57 // 100
    model.zero_grad(set_to_none=True)
    with pytest.raises(torch.OutOfMemoryError):
        train_within(model, inputs, cap)
    model.zero_grad(set_to_none=True)
    with device_of(cap):
        plan = planner.plan(model, budget_mb=f"{cap}B", inputs=inputs, search=planner.Capped())
    assert plan.notes == (NEVER, BY_DIGEST)
    # Nothing that runs under a cap shows the numbers that C++ code wraps in tensors.
    assert plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= cap
    assert 0 <= plan.measured_peak_bytes - plan.predicted_peak_bytes <= 8 * 16
    with planner.apply(model, plan):
        train_within(model, inputs, cap)


def test_where_the_device_holds_less_than_the_budget_the_plan_takes_less_and_says_so() -> None:
    model, x = stack()
    plain = peak_of(model, x)
    model.zero_grad(set_to_none=True)
    cap = plain * 65 // 100
    with device_of(cap):
        plan = planner.plan(model, budget_mb=f"{plain * 85 // 100}B", inputs=x)
    assert plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= cap
    assert plan.budget_bytes == plain * 85 // 100
    assert plan.notes[0] == RAN_OUT
    assert plan.notes[1] == BY_DIGEST and "this one needs less" in plan.notes[2]


def test_where_nothing_runs_estimates_stay_and_the_plan_says_so() -> None:
    model, x = stack()
    plain = peak_of(model, x)
    model.zero_grad(set_to_none=True)
    with device_of(plain // 4):
        plan = planner.plan(model, budget_mb="85%", inputs=x)
    assert plan.measured_peak_bytes is None and plan.predicted_peak_bytes <= plain * 85 // 100
    assert NO_FORWARD in plan.notes and UNMEASURED in plan.notes
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_plan_that_misses_the_budget_by_a_byte_gives_way_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With room left below the budget, the same plan would be found again."""
    misses: list[int] = []

    def peak(step: Step, plan: Plan) -> int:
        if not misses:
            misses.append(plan.budget_bytes - plan.predicted_peak_bytes + 1)
        return plan.predicted_peak_bytes + misses[0]

    monkeypatch.setattr("planner.planning.capped.planned_peak", peak)
    model, x = stack()
    plan = planner.plan(model, budget_mb="72%", inputs=x, search=planner.Capped())
    assert misses[0] > 100
    assert plan.measured_peak_bytes == plan.predicted_peak_bytes + misses[0] <= plan.budget_bytes


def test_a_budget_that_no_plan_holds_is_named_as_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = stack()
    budget = peak_of(model, x) * 6 // 10
    model.zero_grad(set_to_none=True)
    monkeypatch.setattr(
        "planner.planning.capped.planned_peak",
        lambda step, plan: plan.predicted_peak_bytes + budget,
    )
    with pytest.raises(InfeasibleBudgetError) as raised:
        planner.plan(model, budget_mb=f"{budget}B", inputs=x, search=planner.Capped())
    assert raised.value.budget_bytes == budget < raised.value.min_peak_bytes


def test_a_step_that_looks_at_its_data_is_planned() -> None:
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(Block(32) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.blocks(x)
            return y * x.abs().sum().item() if bool((x > 0).any()) else -y

    model, x = Choosy(), torch.randn(256, 32)
    plan = planner.plan(model, budget_mb="70%", inputs=x, search=planner.Capped())
    assert plan.plain_peak_bytes == peak_of(model, x)
    assert plan.measured_peak_bytes == plan.predicted_peak_bytes


def test_the_times_are_those_of_the_planned_run() -> None:
    model, x = stack()
    capped = planner.plan(model, budget_mb="60%", inputs=x, search=planner.Capped())
    free = planner.plan(model, budget_mb="60%", inputs=x)
    assert capped.budget_bytes == free.budget_bytes
    ratio = (1 + capped.predicted_overhead_ratio) / (1 + free.predicted_overhead_ratio)
    assert 0.3 < ratio < 3


def test_a_failed_allocation_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    error = StepError("the forward raised")
    error.__cause__ = caught.value
    assert ran_out_of_memory(error)
    assert not ran_out_of_memory(PlannerError("something else"))


SCRIPT = """
import resource, sys
import torch, torch.nn as nn, torch._subclasses.fake_tensor
import planner, planner.api
sys.path[:0] = ["tests/support", "tests/unit/planning"]
from test_capped import Block

MIB = 2**20
model = nn.Sequential(*(Block(32) for _ in range(5)))
x = torch.randn(16384, 32)
(model[0](x[:8])).sum().backward()  # start threads and libraries before the cap
model.zero_grad(set_to_none=True)
small = nn.Sequential(*(Block(8) for _ in range(4)))  # and what planning imports
planner.plan(small, budget_mb="90%", inputs=torch.randn(64, 8), search=planner.Capped())

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
CAP = used + 65 * MIB
resource.setrlimit(resource.RLIMIT_AS, (CAP, CAP))
try:
    model(x).sum().backward()
except (RuntimeError, MemoryError) as error:
    print("plain:", str(error)[-60:].replace(chr(10), " "))
else:
    sys.exit("the plain step fits: the test shows nothing")
model.zero_grad(set_to_none=True)
for search in (planner.Capped(), "auto"):
    plan = planner.plan(model, budget_mb=38, inputs=x, search=search)
    assert plan.plain_peak_bytes > 75 * MIB, plan.plain_peak_bytes
    with planner.apply(model, plan):
        model(x).sum().backward()
    model.zero_grad(set_to_none=True)
    print("planned", plan.measured_peak_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.nightly
def test_a_step_that_does_not_fit_is_planned_and_trained_under_a_cap() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed goes back at once
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "plain:" in run.stdout and run.stdout.count("planned") == 2


def test_a_wrong_replay_is_left_out_without_memory_for_originals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replays of dropout draw anew here, as a kernel with a generator of its own would."""
    monkeypatch.setattr(generators.DrawsAgain, "draw", lambda self, op, generator, run: run())
    blocks = [nn.Sequential(Block(32), nn.Dropout(0.5), nn.Tanh()) for _ in range(6)]
    step = make_step(nn.Sequential(*blocks), inputs=torch.randn(256, 32))
    profile = build_profile(step)
    with pytest.raises(InfeasibleBudgetError) as raised:
        from_profile(profile, 1)
    lowest = from_profile(profile, raised.value.min_peak_bytes)
    lowest = replace(lowest, budget_bytes=2 * profile.plain_peak_bytes)
    policy = _Capped(_CappedRuns(step, None), Graph.of(profile), "auto", Pins(), [])
    with monkeypatch.context() as patched:  # no originals are kept
        patched.setattr(tape, "audit", lambda *args: pytest.fail("kept originals"))
        assert isinstance(policy.run(lowest), SearchAgain)
    assert policy.exclusions and all("replay differs" in e.reason for e in policy.exclusions)
    again = policy.run(replace(lowest, exclusions=tuple(policy.exclusions)))
    assert isinstance(again, Faulty) and again.faults
    with pytest.raises(ReplayError, match="no unit can be left out for it"):
        policy.none_fits(lowest, again, raised.value)
    nothing = replace(lowest, segments=(), budget_bytes=2 * profile.plain_peak_bytes)
    assert isinstance(policy.run(nothing), Fits)
