"""A planned step, timed op by op: the times and the workspaces of the plain step's own ops.

The forward of a planned step runs the very ops of the plain one; in backward, replays stand
between them, where the graph says. Used by `planner.planning.capped`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan, Profile
from planner.graph import Graph, resolve, simulate
from planner.graph.effect import effects_of
from planner.memory.workspaces import Workspaces, workspaces_of
from planner.profiler.timing import OpTimer
from planner.training_step.same_state import from_same_state
from planner.training_step.step import Step, model_device
from planner.verifier.measure import measure_time

RUNS = 2


_COPYING = ("aten.empty.", "aten.set_.", "aten.copy_.", "aten.clone.")
"""Ops of the engine itself: copies of what an op is about to overwrite."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A planned step: what each of its ops took, and how long the step takes without timers."""

    ops: OpTimer
    step_ns: int


def time_planned_step(step: Step, plan: Plan, workspaces: Workspaces | None = None) -> TimedStep:
    """Run a planned step a few times, once with every op timed and, where it can be, measured."""
    device = model_device(step.model)
    timer = OpTimer(device, workspaces or workspaces_of(device))
    with applied(step.model, Runtime(plan)):
        with from_same_state(step), timer:
            step.run()
        steps_ns = [measure_time(step) for _ in range(RUNS)]
    return TimedStep(timer, min(steps_ns))


def own_ops(graph: Graph, plan: Plan, names: Sequence[str]) -> dict[int, int]:
    """Return, for each op of the plain step, its place among the ops of a planned step.

    Ends where the planned step does other things than the graph says.

    Args:
        graph: of the plain step.
        plan: the plan.
        names: of the planned step's ops, replays included.
    """
    replays = _replays(graph, plan)
    found: dict[int, int] = {}
    at = 0
    for index, op in enumerate(graph.profile.ops):
        at += replays[index]
        while at < len(names) and names[at] != op.name and names[at].startswith(_COPYING):
            at += 1
        if at >= len(names) or names[at] != op.name:
            break
        found[index] = at
        at += 1
    return found


def _replays(graph: Graph, plan: Plan) -> Counter[int]:
    """How many ops run again right before each op."""
    found: Counter[int] = Counter()
    for span in resolve(graph, plan.segments):
        for effect in effects_of(graph, span):
            for moment in effect.moments:
                found[moment.at] += len(moment.highs)
    return found


def plain_time_ns(graph: Graph, plan: Plan, planned_ns: int) -> int:
    """Return what the plain step takes, from what the planned one took.

    That is no less than its ops take.
    """
    overhead = simulate(graph, resolve(graph, plan.segments)).overhead_ns
    return max(planned_ns - overhead, sum(op.time_ns for op in graph.profile.ops))


def backward_of(profile: Profile, ops: dict[int, int]) -> dict[int, int]:
    """Return those of `own_ops` that the forward does not show."""
    first = next((i for i, op in enumerate(profile.ops) if op.phase == "backward"), None)
    return {} if first is None else {op: at for op, at in ops.items() if op >= first}
