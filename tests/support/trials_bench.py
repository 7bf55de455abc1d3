"""A bench without noise for tests of the measured search, and a small net to search on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from planner.documents import Plan, Profile
from planner.graph import Graph, resolve, simulate
from planner.planning.trials.bench import StepBench
from planner.profiler.build import build_profile
from planner.training_step.step import Step, make_step

BELIEVED_NS = 1_000_000


class Block(nn.Module):
    """One of several equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.act, self.narrow = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.act(self.wide(x)))


def blocks(count: int = 4) -> tuple[nn.Module, torch.Tensor]:
    """Return equal blocks in a row, and their input."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count))), torch.randn(256, 16)


def with_times(profile: Profile, times_ns: Callable[[str], int]) -> Profile:
    """Return a profile whose ops take what their unit's name says."""
    names = [*(unit.name for unit in profile.units), ""]
    ops = tuple(replace(op, time_ns=times_ns(names[op.unit])) for op in profile.ops)
    return replace(profile, ops=ops, step_time_ns=sum(op.time_ns for op in ops))


def believed(model: nn.Module, inputs: object) -> tuple[Step, Profile]:
    """Return a step and its profile, all ops taking the same time."""
    step = make_step(model, inputs=inputs)
    return step, with_times(build_profile(step), lambda _: BELIEVED_NS)


class TrueBench(StepBench):
    """Peaks and results are real; times are played from a profile that knows the truth.

    Attributes:
        readings: how often a time was read.
    """

    def __init__(self, step: Step, truth: Profile) -> None:
        super().__init__(step)
        self.graph = Graph.of(truth)
        self.readings = 0

    def time_ns(self, plan: Plan) -> int:
        self.readings += 1
        return self.true_ns(plan)

    def true_ns(self, plan: Plan) -> int:
        """Return the true time of a step."""
        played = simulate(self.graph, resolve(self.graph, plan.segments))
        return self.graph.profile.step_time_ns + played.overhead_ns
