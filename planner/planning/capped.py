"""Planning without ever running the plain step: nothing runs that needs more than the budget.

Memory facts come from a step on fake tensors. A forward with everything recomputed, which fits
wherever a plan does, checks them on the device and shows workspaces and times. A first plan then
runs within the budget and shows the same of backward, and with all that the search is done again;
the plan is measured and probed as always, by checksums, since originals would need memory. Where
the device runs out of memory, plans that need less are tried, and at last estimates stay; the
plan's notes say so.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace

from planner.budget import Budget
from planner.documents import Exclusion, Pins, Plan, Profile, Segment
from planner.errors import InfeasibleBudgetError
from planner.estimate.cost_model import cost_model_for
from planner.estimate.fact_check import checked, same_forward
from planner.estimate.fake_profile import build_fake_profile
from planner.graph import Graph
from planner.memory.allocator import (
    allocated_bytes,
    outside,
    ran_out_of_memory,
    release_cached,
    warm_libraries,
)
from planner.memory.peak import peak_of
from planner.memory.workspaces import Workspaces, with_workspaces
from planner.planning.checks import planned_peak
from planner.planning.exclusions import exclusions_for, no_exclusion_helps
from planner.planning.never import never_replaying
from planner.planning.offline import from_profile
from planner.planning.probe import Fault, probe
from planner.planning.refine import (
    Accepted,
    Faulty,
    Fits,
    Outcome,
    SearchAgain,
    TooHigh,
    refine,
)
from planner.planning.timed_step import backward_of, own_ops, plain_time_ns, time_planned_step
from planner.profiler.forwards import Forward, backwards_in, run_forward
from planner.profiler.pooled import with_op_times
from planner.profiler.timing import OpTimer
from planner.search import Method
from planner.training_step.step import Step, model_device
from planner.units import format_bytes

SMALLER = (0.5, 0.2, 0.0)
"""After a failed allocation, how much of what a plan takes beyond the floor the next one may."""

NEVER = "the plain step was never run"
RAN_OUT = "the plain step ran out of memory"
BY_DIGEST = "replays were compared with checksums of their originals"
NO_FORWARD = (
    "the device ran out of memory in a forward with everything recomputed: times are estimated, and"
    " sizes were not checked against the device"
)
SMALLER_PLAN = "the device ran out of memory under a plan for {}: this one needs less"
NO_BACKWARD = "the device ran out of memory in a timed step: times of backward are estimated"
UNMEASURED = (
    "the device ran out of memory under every plan that was tried: the peak is predicted, and was"
    " not measured; replays were not compared with their originals"
)


def plan_capped(
    step: Step,
    budget: Budget,
    *,
    method: Method = "auto",
    pins: Pins = Pins(),  # noqa: B008  # frozen
    reason: str = NEVER,
    workspaces: Workspaces | None = None,
) -> Plan:
    """Return a measured plan; no run on the way needs more memory than the budget.

    Args:
        step: the training step, on the device where it will run.
        budget: the most live bytes.
        method, pins: as for `planner.plan`.
        reason: the first note of the plan.
        workspaces: measures what ops take inside themselves; by default as the device's
            allocator counts.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget.
        StepError: the step needs the content of a tensor before it can be planned.
        ReplayError: a replay that the budget asks for is wrong, and no unit can be left out for it.
        PlannerError: no candidate was right and within the budget.
    """
    runs = _CappedRuns(step, workspaces)
    exclusions: list[Exclusion] = []

    def within(profile: Profile) -> Plan:
        policy = _Capped(runs, Graph.of(profile), method, pins, exclusions)
        return refine(policy, budget.resolve(profile.plain_peak_bytes))

    profile = never_replaying(runs.facts(), pins.never)
    plan = within(profile)
    if plan.segments and plan.measured_peak_bytes is not None:
        timed = runs.with_backward(profile, plan)
        plan = plan if timed is profile else within(timed)
    if not plan.segments and plan.measured_peak_bytes is not None:
        reason = ""  # the plain step fits, and ran
    digests = BY_DIGEST if plan.segments and plan.measured_peak_bytes is not None else ""
    notes = dict.fromkeys(filter(None, (reason, digests, *runs.notes, *plan.notes)))
    return replace(plan, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _CappedRuns:
    """What runs one step within a budget; notes on what did not go as it should."""

    step: Step
    workspaces: Workspaces | None
    notes: list[str] = field(default_factory=list)
    _probed: set[tuple[Segment, ...]] = field(default_factory=set)

    def facts(self) -> Profile:
        """Return the fake step's profile with the facts and the times of a real forward.

        Where the real step read the content of a tensor, the fake one gets the same answer.
        """
        device = model_device(self.step.model)
        release_cached(device)
        warm_libraries(device)
        forward = self._forward(1)
        if forward is None:
            self.ran_out(NO_FORWARD)
            return self._fake()
        profile = self._fake(forward)
        backwards = backwards_in(profile)
        if backwards > 1:
            forward = self._forward(backwards) or forward
            if not same_forward(profile, forward.recording):
                profile = self._fake(forward)
        profile, places, said = checked(profile, forward.recording, device)
        self.notes.extend(said)
        times = {op: forward.times_ns[at] for at, op in places.items()}
        return with_op_times(_with_others(profile, allocated_bytes(device)), times)

    def _fake(self, forward: Forward | None = None) -> Profile:
        costs = cost_model_for(model_device(self.step.model))
        if forward is None:
            return build_fake_profile(self.step, costs)
        known, ops = forward.answers, forward.custom_ops
        return build_fake_profile(self.step, costs, answers=known, custom_ops=ops)

    def _forward(self, backwards: int) -> Forward | None:
        """A real forward; None where the device runs out of memory."""
        try:
            return run_forward(self.step, backwards, self.workspaces)
        except Exception as error:
            _check_is_memory(error)
        return None

    def with_backward(self, profile: Profile, plan: Plan) -> Profile:
        """Return the profile with the times and workspaces of backward in a planned step."""
        try:
            seen = time_planned_step(self.step, plan, self.workspaces)
        except Exception as error:
            _check_is_memory(error)
        else:
            ops = own_ops(Graph.of(profile), plan, seen.ops.names)
            found = _with_backward(profile, backward_of(profile, ops), seen.ops)
            step_ns = plain_time_ns(Graph.of(found), plan, seen.step_ns)
            return replace(found, step_time_ns=step_ns)
        self.ran_out(NO_BACKWARD)
        return profile

    def peak_bytes(self, plan: Plan) -> int | None:
        """Return what a plan takes, measured; None where the device runs out of memory."""
        try:
            return planned_peak(self.step, plan)
        except Exception as error:
            _check_is_memory(error)
        return None

    def faults(self, plan: Plan) -> list[Fault]:
        """Return the plan's wrong replays, by checksums of their originals."""
        if not plan.segments or plan.segments in self._probed:
            return []
        found = probe(self.step, plan, by_digest=True)
        if not found:
            self._probed.add(plan.segments)
        return found

    def ran_out(self, note: str) -> None:
        """Note it, and give back what the failed run left; its error must be gone by now."""
        self.notes.append(note)
        gc.collect()
        release_cached(model_device(self.step.model))


@dataclass(slots=True)
class _Capped:
    """The policy: one profile, one set of pins; nothing runs that is predicted to need too much.

    Attributes:
        exclusions: what had to be left out so far; with another profile, too.
        first: the plan for the budget itself, which is returned where none can be measured.
        smaller: how much of what a plan takes beyond the floor further ones may, on a device that
            ran out of memory.
        miss_bytes: by how much the last prediction was too low.
    """

    runs: _CappedRuns
    graph: Graph
    method: Method
    pins: Pins
    exclusions: list[Exclusion]
    first: Plan | None = None
    smaller: tuple[float, ...] = SMALLER
    miss_bytes: int = 0

    def search(self, target_bytes: int) -> Plan:
        """See `Policy`."""
        return from_profile(
            self.graph.profile,
            target_bytes,
            method=self.method,
            pins=self.pins,
            exclusions=self.exclusions,
            graph=self.graph,
        )

    def run(self, plan: Plan) -> Outcome:
        """See `Policy`: the peak first, then the probe by checksums."""
        if plan.predicted_peak_bytes > plan.budget_bytes:
            return TooHigh(None)
        self.first = self.first or plan
        peak = self.runs.peak_bytes(plan)
        if peak is None:
            return self._with_less(plan)
        if peak > plan.budget_bytes:
            self.miss_bytes = peak - plan.predicted_peak_bytes
            return TooHigh(peak)
        faults = self.runs.faults(plan)
        found = exclusions_for(self.graph, plan, faults)
        self.exclusions += found
        if found:
            return SearchAgain(peak_bytes=peak)
        return Faulty(faults) if faults else Fits(peak)

    def none_fits(self, plan: Plan, outcome: Outcome, error: InfeasibleBudgetError) -> Plan:
        """See `Policy`."""
        if isinstance(outcome, Faulty):
            raise no_exclusion_helps(plan.model_class, outcome.faults[0], self.exclusions)
        raise InfeasibleBudgetError(
            budget_bytes=plan.budget_bytes,
            min_peak_bytes=error.min_peak_bytes + self.miss_bytes,
            holders=error.holders,
        )

    def _with_less(self, plan: Plan) -> Outcome:
        """The device ran out of memory: search for less, or measure nothing."""
        if not self.smaller:
            self.runs.ran_out(UNMEASURED)
            return Accepted(self.first or plan)
        self.runs.ran_out(SMALLER_PLAN.format(format_bytes(plan.predicted_peak_bytes)))
        low = plan.floor_bytes if plan.floor_bytes is not None else plan.predicted_peak_bytes
        share, *further = self.smaller
        self.smaller = tuple(further)
        return SearchAgain(low + int((plan.predicted_peak_bytes - low) * share))


def _check_is_memory(error: Exception) -> None:
    if not ran_out_of_memory(error):
        raise error


def _with_others(profile: Profile, allocated: int) -> Profile:
    """Return the profile with what else the device holds, which is what it holds between steps."""
    storages = (*profile.storages, *outside(profile.storages, allocated, len(profile.ops)))
    peak = peak_of(storages, len(profile.ops))
    return replace(profile, storages=storages, plain_peak_bytes=peak)


def _with_backward(profile: Profile, ops: dict[int, int], seen: OpTimer) -> Profile:
    """Return the profile with what a planned step showed of ops of backward."""
    times = seen.times_ns()
    measured = {i: op.time_ns for i, op in enumerate(profile.ops) if op.phase == "forward"}
    measured |= {op: times[at] for op, at in ops.items()}
    inside = [(op, seen.workspace_bytes[at]) for op, at in ops.items()]
    storages = with_workspaces(profile, inside)
    peak = peak_of(storages, len(profile.ops))
    profile = replace(profile, storages=storages, plain_peak_bytes=peak)
    return with_op_times(profile, measured)
