"""Planning without ever running the plain step: nothing runs that needs more than the budget.

Memory facts come from the fake step. A first plan is searched on estimated times; it runs within
the budget, and as the forward of a planned step runs the very ops of the plain one, its op times
are the plain step's. With them the search is done again, and the plan is measured as always. What
is left out is the probe, which keeps originals beside their replays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from planner.applier.gates import install
from planner.applier.runtime import Runtime
from planner.documents import Pins, Plan, Profile
from planner.errors import PlannerError
from planner.graph import Graph
from planner.planning.offline import from_profile
from planner.profiler.cost_model import CostModel
from planner.profiler.devices import DeviceSpec, device_spec, known_devices
from planner.profiler.fake import build_fake_profile
from planner.profiler.step import Step, model_device
from planner.profiler.timing import OpTimer
from planner.units import Budget
from planner.verifier.measure import from_same_state, measure_peak

ROUNDS = 6
NOTE = "the plain step was never run: its replays were not compared with their originals"


def settle_capped(
    step: Step,
    budget: Budget,
    *,
    method: str = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
) -> Plan:
    """Return a measured plan; no run on the way needs more memory than the budget.

    Args:
        step: the training step, on the device where it will run.
        budget: the most live bytes.
        method, pins: as for `planner.plan`.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget.
        StepError: the step needs the content of a tensor before it can be planned.
        PlannerError: no plan held what it promised.
    """
    profile = build_fake_profile(step, cost_model_for(model_device(step.model)))
    budget_bytes = budget.resolve(profile.plain_peak_bytes)
    capped = _Capped(step, budget_bytes, method, pins)
    first = capped.within(profile)
    if not first.segments:
        return first
    timed = with_times(profile, op_times(step, first))
    return replace(capped.within(timed), notes=(NOTE,))


@dataclass(frozen=True, slots=True)
class _Capped:
    """One step, one budget, one set of wishes."""

    step: Step
    budget_bytes: int
    method: str
    pins: Pins

    def within(self, profile: Profile) -> Plan:
        """Return a plan whose step was measured within the budget."""
        graph = Graph.of(profile)
        target = self.budget_bytes
        for _ in range(ROUNDS):
            plan = from_profile(profile, target, method=self.method, pins=self.pins, graph=graph)
            measured = self._peak(plan)
            if measured <= self.budget_bytes:
                return replace(plan, budget_bytes=self.budget_bytes, measured_peak_bytes=measured)
            target -= measured - self.budget_bytes
        raise PlannerError(
            f"no plan for this {profile.model_class} held what it promised in {ROUNDS} rounds",
            numbers=f"budget {self.budget_bytes} B, last measured peak {measured} B",
            cause="the step changes from run to run",
            fix="make the step deterministic, or raise the budget",
        )

    def _peak(self, plan: Plan) -> int:
        """The larger peak of a first step, which records, and a second one, which follows."""
        hooks = install(self.step.model, Runtime(plan))
        try:
            return max(measure_peak(self.step) for _ in range(2))
        finally:
            for hook in hooks:
                hook.remove()


def op_times(step: Step, plan: Plan) -> OpTimer:
    """Run a planned step once with every op timed."""
    timer = OpTimer(model_device(step.model))
    hooks = install(step.model, Runtime(plan))
    try:
        with from_same_state(step), timer:
            step.run()
    finally:
        for hook in hooks:
            hook.remove()
    return timer


def with_times(profile: Profile, timer: OpTimer) -> Profile:
    """Return a profile with the times of the ops that ran in the same order from the start.

    Ops beyond, in backward, where replays stand between them, keep their estimate in proportion.
    """
    times = timer.times_ns()
    same = 0
    for op, name in zip(profile.ops, timer.names, strict=False):
        if op.name != name or op.phase == "backward":
            break
        same += 1
    estimated = sum(op.time_ns for op in profile.ops[:same])
    factor = sum(times[:same]) / estimated if estimated else 1.0
    ops = [replace(op, time_ns=times[i]) for i, op in enumerate(profile.ops[:same])]
    ops += [replace(op, time_ns=int(op.time_ns * factor)) for op in profile.ops[same:]]
    return replace(
        profile,
        ops=tuple(ops),
        step_time_ns=sum(op.time_ns for op in ops),
        forward_time_ns=sum(op.time_ns for op in ops if op.phase == "forward"),
    )


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or what it came from, is a failed allocation."""
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
            return True
        error = error.__cause__
    return False


def cost_model_for(device: torch.device) -> CostModel:
    """Return the cost model of the device at hand, or of one like it."""
    return CostModel(_spec(device))


def _spec(device: torch.device) -> DeviceSpec:
    """The row of the table."""
    if device.type != "cuda":
        return device_spec("cpu")
    name = torch.cuda.get_device_name(device).lower().replace(" ", "")
    return next((s for s in known_devices().values() if s.name in name), device_spec("a100"))
