"""Facts of stand-ins beside those of a forward that ran, and memory that only an allocator sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import zoo
from daily import nightly_but
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from typing_extensions import Self

import planner
from planner.budget import parse_budget
from planner.documents import Profile, Storage
from planner.estimate.cost_model import cost_model_for
from planner.estimate.fact_check import checked, same_forward
from planner.estimate.fake_profile import build_fake_profile
from planner.graph import Graph, resolve, simulate
from planner.memory.allocator import blocks_of, outside
from planner.memory.rounding import CUDA, in_blocks
from planner.memory.workspaces import (
    CountedWorkspaces,
    LoggedWorkspaces,
    Workspaces,
    workspaces_of,
)
from planner.planning.capped import plan_capped
from planner.planning.checks import planned_peak
from planner.planning.offline import from_profile
from planner.profiler.build import build_profile
from planner.profiler.forwards import Forward, backwards_in, run_forward
from planner.profiler.pooled import with_op_times
from planner.profiler.timing import OpTimer, best_op_times
from planner.training_step.step import Step, make_step

CPU = torch.device("cpu")


def both(step: Step) -> tuple[Profile, Forward]:
    """The profile of a fake step that was told what the real forward heard, and that forward."""
    forward = run_forward(step, runs=1)
    return build_fake_profile(step, cost_model_for(CPU), answers=forward.answers), forward


@pytest.mark.parametrize("name", nightly_but(("gpt2", "mixtral", "convnext"), zoo.ZOO))
def test_fake_real_and_measured_peaks_agree_under_plans(name: str) -> None:
    entry = zoo.ZOO[name]
    pytest.importorskip(entry.library)
    model, inputs = entry.build()
    step = make_step(model, inputs=inputs)
    fake, forward = both(step)
    real = build_profile(step)
    found, places, said = checked(fake, forward.recording, CPU)
    assert same_forward(fake, forward.recording) and len(places) == len(forward.recording.ops)
    tensors = len(fake.storages)
    assert said == () and found.storages[:tensors] == fake.storages
    assert real.storages[:tensors] == fake.storages and fake.saved == real.saved
    assert not large(found.storages[tensors:]) - large(real.storages[tensors:])
    told = replace(fake, storages=real.storages, plain_peak_bytes=real.plain_peak_bytes)
    graph, beside = Graph.of(told), Graph.of(real)
    lowest = from_profile(told, told.plain_peak_bytes * 95 // 100, graph=graph).floor_bytes
    assert lowest is not None
    for part in (1, 3, 5):
        budget = lowest + (told.plain_peak_bytes - lowest) * part // 6
        plan = from_profile(told, budget, graph=graph)
        spans = resolve(beside, plan.segments)
        assert simulate(beside, spans).peak_bytes == plan.predicted_peak_bytes
        assert planned_peak(step, plan) == plan.predicted_peak_bytes


def large(workspaces: Sequence[Storage]) -> Counter[Storage]:
    """Those that are no numbers wrapped in tensors, which modes around a run add to."""
    return Counter(storage for storage in workspaces if storage.bytes > 64)


class Honest(nn.Module):
    """A block that does other things to stand-ins than to tensors with content."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.layer, self.more = nn.Linear(16, 16), more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self.layer(x))
        if type(x) is FakeTensor and self.more:
            return torch.sigmoid(y).relu()
        return torch.exp(y)


def test_a_block_in_which_other_ops_run_is_left_out_with_the_reason() -> None:
    model = nn.Sequential(*(Honest(more=index == 1) for index in range(4)))
    step = make_step(model, inputs=torch.randn(64, 16))
    fake, forward = both(step)
    assert not same_forward(fake, forward.recording)
    found, places, said = checked(fake, forward.recording, CPU)
    assert [e.unit for e in found.excluded] == ["1"]
    assert "aten.sigmoid.default" in found.excluded[0].reason
    assert "aten.exp.default" in found.excluded[0].reason
    assert len(said) == 1 and "left out" in said[0]
    last = len(forward.recording.ops) - 1
    assert fake.ops[places[last]].name == forward.recording.ops[last].name  # found again behind it


def test_sizes_that_only_the_kernel_knows_are_taken_from_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.lstm = nn.Linear(16, 16), nn.LSTM(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.lstm(torch.tanh(self.up(x)))[0]
            return found

    model, x = Net(), torch.randn(8, 32, 16)
    step = make_step(model, inputs=x)
    fake, forward = both(step)
    found, _, said = checked(fake, forward.recording, CPU)
    real = build_profile(step)
    if fake.storages == real.storages:
        pytest.skip("this build's LSTM saves nothing that its stand-in does not")
    tensors = len(fake.storages)
    assert found.storages[:tensors] == real.storages[:tensors]
    assert not large(found.storages[tensors:]) - large(real.storages[tensors:])
    assert any("mkldnn_rnn_layer" in text and "real size" in text for text in said)


class Fixed(Workspaces):
    """An allocator by which every op takes so much inside itself."""

    def __init__(self, size: int) -> None:
        self.size, self.open, self.count = size, False, 0

    def __enter__(self) -> Self:
        self.count = 0
        return self

    def begin(self) -> None:
        assert not self.open
        self.open = True

    def end(self) -> None:
        self.open = False
        self.count += 1

    def taken(self) -> list[int]:
        return [self.size] * self.count


def test_workspaces_count_in_the_step_and_in_replays() -> None:
    model, x = zoo.small_net()
    step = make_step(model, inputs=x)
    without, found = (build_profile(step, workspaces=w) for w in (Workspaces(), Fixed(4096)))
    assert found.plain_peak_bytes == without.plain_peak_bytes + 4096
    plan = from_profile(without, without.plain_peak_bytes * 7 // 10)
    assert plan.segments
    peaks = [
        simulate(graph, resolve(graph, plan.segments)).peak_bytes
        for graph in (Graph.of(without), Graph.of(found))
    ]
    assert peaks[1] == peaks[0] + 4096


def test_workspaces_are_part_of_a_plan_made_within_the_budget() -> None:
    layers = [(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(6)]
    model = nn.Sequential(*(layer for three in layers for layer in three))
    step = make_step(model, inputs=torch.randn(256, 32))
    plan = plan_capped(step, parse_budget("75%"), workspaces=Fixed(8192))
    assert plan.segments and plan.measured_peak_bytes is not None
    assert plan.predicted_peak_bytes == plan.measured_peak_bytes + 8192  # no meter here sees them
    assert plan.predicted_peak_bytes <= plan.budget_bytes


def test_what_else_is_on_the_device_is_part_of_every_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = zoo.small_net()
    step = make_step(model, inputs=x)
    own = sum(s.bytes for s in build_profile(step).storages if s.birth < 0)
    monkeypatch.setattr("planner.planning.capped.allocated_bytes", lambda device: own + 4096)
    monkeypatch.setattr(
        "planner.planning.capped.planned_peak", lambda *args: planned_peak(*args) + 4096
    )
    plan = plan_capped(step, parse_budget("75%"))
    assert plan.segments and plan.measured_peak_bytes is not None
    assert plan.predicted_peak_bytes == plan.measured_peak_bytes


def test_times_by_events_are_not_mixed_with_times_by_the_clock() -> None:
    class Timed(OpTimer):
        def times_ns(self) -> list[int]:
            return [500, 700]

    cpu, gpu, other = Timed(CPU), Timed(torch.device("cuda")), Timed(torch.device("cuda"))
    cpu.names, gpu.names, other.names = ["a", "b"], ["a", "b"], ["c", "d"]
    assert best_op_times(["a", "b"], [600, 600], [cpu]) == [500, 600]
    assert best_op_times(["a", "b"], [10, 10], [gpu, other]) == [500, 700]
    assert best_op_times(["a", "b"], [10, 20], [other]) == [10, 20]


def test_the_time_until_an_op_arrives_is_taken_off_where_the_device_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event:
        """Recorded at so many milliseconds; reached at once, or not."""

        def __init__(self, at: float, reached: bool = True) -> None:
            self.at, self.reached = at, reached

        def record(self) -> None:
            pass

        def query(self) -> bool:
            return self.reached

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    ops = [(0.0, 0.5), (1.0, 1.5), (2.0, 2.011), (3.0, 3.0005)]
    reached = [False, True, True, True]
    events = [e for (a, b), r in zip(ops, reached, strict=True) for e in (Event(a), Event(b, r))]
    monkeypatch.setattr("planner.profiler.timing.synchronize", lambda device: None)
    monkeypatch.setattr("planner.profiler.timing._arrival_ns", lambda device: 10_500)
    monkeypatch.setattr("planner.profiler.timing._event", lambda device: events.pop(0))
    with OpTimer(torch.device("cuda")) as timer:
        for _ in ops:
            torch.ones(1)
    assert timer.times_ns() == [489_500, 500_000, 1_000, 500]


def test_what_the_allocator_tells_is_read_as_peak_over_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert type(workspaces_of(CPU)) is LoggedWorkspaces
    assert type(workspaces_of(torch.device("meta"))) is Workspaces
    begun: list[Any] = []
    stats = {"allocated_bytes": {"all": {"peak": 5000, "current": 3000}}}
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", begun.append)
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceStats", lambda index: stats)
    meter = CountedWorkspaces(torch.device("cuda", 1))
    meter.begin()
    meter.end()
    assert begun == [1] and meter.taken() == [2000]


def test_blocks_of_the_allocator_and_what_else_is_on_the_device() -> None:
    model, x = zoo.small_net(blocks=1)
    profile = build_profile(make_step(model, inputs=x))
    blocks = in_blocks(profile.storages, CUDA)
    assert all(s.bytes % 512 == 0 for s in blocks)
    assert blocks_of(CPU) is None and in_blocks(profile.storages, None) == profile.storages
    ops = len(profile.ops)
    own = sum(s.bytes for s in blocks if s.birth < 0)
    assert outside(blocks, own, ops) == ()
    (other,) = outside(blocks, own + 8 * 2**20, ops)
    assert (other.bytes, other.birth, other.death) == (8 * 2**20, -1, ops)


def test_the_same_op_of_equal_blocks_gets_one_time() -> None:
    model, x = zoo.small_net(blocks=5, dropout=0.0)
    profile = build_profile(make_step(model, inputs=x))
    forward = [i for i, op in enumerate(profile.ops) if op.phase == "forward"]
    times = {i: 1000 + 7 * i for i in forward}
    estimated = replace(profile, ops=tuple(replace(op, time_ns=100) for op in profile.ops))
    found = with_op_times(estimated, times)
    gelu = [i for i in forward if profile.ops[i].name == "aten.gelu.default"]
    assert len(gelu) == 5
    assert {found.ops[i].time_ns for i in gelu} == {times[gelu[2]]}
    backward = [op.time_ns for op in found.ops if op.phase == "backward"]
    pooled = sum(found.ops[i].time_ns for i in forward)
    assert set(backward) == {int(100 * pooled / (100 * len(forward)))}
    assert found.step_time_ns == sum(op.time_ns for op in found.ops)


def test_backwards_are_counted() -> None:
    model, x = zoo.small_net(blocks=2)

    def twice(model: nn.Module) -> None:
        for _ in range(2):
            model(x).sum().backward()

    assert backwards_in(build_profile(make_step(model, step=twice))) == 2
    plan = planner.plan(model, budget_mb="80%", step=twice, search=planner.Capped())
    assert plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= plan.budget_bytes
