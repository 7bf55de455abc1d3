"""Runs a step's forward for real with everything given up: the least that any plan's forward needs.

What autograd would save is dropped and no backward runs, so this fits wherever a plan does. It
shows what the device really does: which ops run, what they make and how long it lives, what their
kernels take besides, and their times. Called by `planner.planning.capped`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from planner.documents import CustomOp, Profile
from planner.memory.workspaces import Workspaces, workspaces_of
from planner.profiler.build import SHORT_STEP_NS, tracked
from planner.profiler.data_dependence import Listening
from planner.profiler.recorder import Recording, StepRecorder, run_recorded
from planner.profiler.timing import OpTimer, best_op_times
from planner.profiler.vetting import Vetting
from planner.replay.custom_ops import op_rules
from planner.training_step.same_state import clear_gradients
from planner.training_step.state import preserving
from planner.training_step.step import Step, model_device

RUNS = {"short": 3, "long": 2}
"""The first one also warms up (libraries, caches), and vets the ops outside aten."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward that ran for real.

    Attributes:
        recording: what it showed.
        times_ns: of each of its ops, in nanoseconds.
        answers: the answers that it got about the content of tensors.
        custom_ops: the ops outside aten that it calls, and whether they may be replayed.
    """

    recording: Recording
    times_ns: list[int]
    answers: list[Any]
    custom_ops: tuple[CustomOp, ...]


def run_forward(
    step: Step,
    backwards: int = 1,
    workspaces: Workspaces | None = None,
    runs: int | None = None,
) -> Forward:
    """Run the forward a few times and return what the last run showed, with the least times.

    Args:
        step: the training step.
        backwards: how many it has; `backwards_in` counts them in a profile.
        workspaces: as for `planner.profiler.build.build_profile`.
        runs: how often it runs; by default more often when it is short.

    Raises:
        StepError: the step raised.
    """
    device = model_device(step.model)
    seen = workspaces or workspaces_of(device)
    timers: list[OpTimer] = []
    wanted = runs or RUNS["short"]
    vetting = Vetting()
    preserved = preserving(step.model, step.optimizer, step)
    while len(timers) < wanted:
        recorder = StepRecorder(step.model, True, backwards, seen, op_rules(vetting.found))
        timers.append(OpTimer(device))
        heard = Listening()
        with preserved():
            clear_gradients(step)
            with vetting if len(timers) == 1 else nullcontext(), heard, timers[-1]:
                run_recorded(step.model, step.run, tracked(step), recorder=recorder)
        if runs is None and sum(timers[-1].times_ns()) > SHORT_STEP_NS:
            wanted = RUNS["long"]
    ops = recorder.recording.ops
    times = best_op_times([op.name for op in ops], [op.time_ns for op in ops], timers)
    return Forward(recorder.recording, times, heard.answers, vetting.found)


def backwards_in(profile: Profile) -> int:
    """Return how many times ops of backward begin in a step, at least once."""
    phases = [op.phase for op in profile.ops]
    pairs = zip(["", *phases], phases, strict=False)
    return max(1, sum(now == "backward" != before for before, now in pairs))
