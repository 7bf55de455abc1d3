"""Planning without ever running the plain step: nothing runs that needs more than the budget.

Memory facts come from the fake step. A forward with everything given up, which fits wherever a plan
does, checks them on the device and shows workspaces and times. A first plan then runs within the
budget and shows the same of backward, and with all that the search is done again; the plan is
measured and probed as always, by checksums, since originals would need memory. Where the device
runs out of memory, plans that need less are tried, and at last estimates stay; the plan's notes say
so.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from planner.budget import Budget
from planner.documents import Exclusion, Pins, Plan, Profile, Segment
from planner.errors import InfeasibleBudgetError, PlannerError
from planner.estimate.cost_model import cost_model_for
from planner.estimate.fact_check import checked, same_forward
from planner.estimate.fake_profile import build_fake_profile
from planner.graph import Graph
from planner.memory.allocator import (
    Workspaces,
    allocated_bytes,
    as_storage,
    outside,
    ran_out_of_memory,
    release_cached,
    warm_libraries,
)
from planner.memory.peak import peak_of
from planner.planning.checks import planned_peak
from planner.planning.exclusions import exclusions_for, unmended
from planner.planning.offline import from_profile
from planner.planning.probe import probe
from planner.planning.slack import told, use_room
from planner.planning.timed_step import backward_of, own_ops, plain_time_ns, watch
from planner.profiler.forwards import Forward, backwards_in, run_forward
from planner.profiler.pooled import with_op_times
from planner.profiler.timing import OpTimer
from planner.training_step.step import Step, model_device
from planner.units import format_bytes

ROUNDS = 6
SMALLER = (0.5, 0.2, 0.0)
"""After a failed allocation, how much of what a plan takes beyond the floor the next one may."""

NEVER = "the plain step was never run"
RAN_OUT = "the plain step ran out of memory"
BY_DIGEST = "replays were compared with checksums of their originals"
NO_FORWARD = (
    "the device ran out of memory in a forward with everything given up: times are estimated, and"
    " sizes were not checked against the device"
)
SMALLER_PLAN = "the device ran out of memory under a plan for {}: this one needs less"
NO_BACKWARD = "the device ran out of memory in a timed step: times of backward are estimated"
UNMEASURED = (
    "the device ran out of memory under every plan that was tried: the peak is predicted, and was"
    " not measured; replays were not compared with their originals"
)


def settle_capped(
    step: Step,
    budget: Budget,
    *,
    method: str = "auto",
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
        workspaces: measures what ops take inside themselves; by default what the device's
            allocator tells.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget.
        StepError: the step needs the content of a tensor before it can be planned.
        ReplayError: a replay that the budget asks for is wrong, and no unit can be left out for it.
        PlannerError: no plan held what it promised.
    """
    capped = _Capped(step, budget, method, pins, workspaces)
    profile = capped.facts()
    plan = capped.within(profile)
    if plan.segments and plan.measured_peak_bytes is not None:
        timed = capped.see_backward(profile, plan)
        if timed is not profile:
            capped.rounds.clear()  # those were of a plan with estimated times
            plan = capped.within(timed)
    if not plan.segments and plan.measured_peak_bytes is not None:
        reason = ""  # the plain step fits, and ran
    digests = BY_DIGEST if plan.segments and plan.measured_peak_bytes is not None else ""
    notes = dict.fromkeys(filter(None, (reason, digests, *capped.notes, *told(capped.rounds))))
    return replace(plan, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _Capped:
    """One step, one budget, one set of wishes; notes on what did not go as it should."""

    step: Step
    budget: Budget
    method: str
    pins: Pins
    workspaces: Workspaces | None
    notes: list[str] = field(default_factory=list)
    exclusions: list[Exclusion] = field(default_factory=list)
    probed: set[tuple[Segment, ...]] = field(default_factory=set)
    rounds: list[tuple[int, int]] = field(default_factory=list)  # predicted and measured

    def facts(self) -> Profile:
        """Return the fake step's profile with the facts and the times of a real forward.

        The fake step is told what the real one was told about the content of tensors.
        """
        device = model_device(self.step.model)
        release_cached(device)
        warm_libraries(device)
        forward = self._forward(1)
        if forward is None:
            self._ran_out(NO_FORWARD)
            return self._fake()
        profile = self._fake(forward.answers)
        backwards = backwards_in(profile)
        if backwards > 1:
            forward = self._forward(backwards) or forward
            if not same_forward(profile, forward.recording):
                profile = self._fake(forward.answers)
        profile, places, said = checked(profile, forward.recording, device)
        self.notes.extend(said)
        times = {op: forward.times_ns[at] for at, op in places.items()}
        return with_op_times(_with_others(profile, allocated_bytes(device)), times)

    def _fake(self, answers: list[Any] | None = None) -> Profile:
        costs = cost_model_for(model_device(self.step.model))
        return build_fake_profile(self.step, costs, answers=answers)

    def _forward(self, backwards: int) -> Forward | None:
        """A real forward; None where the device runs out of memory."""
        try:
            return run_forward(self.step, backwards, self.workspaces)
        except Exception as error:
            self._must_be_memory(error)
        return None

    def see_backward(self, profile: Profile, plan: Plan) -> Profile:
        """Return the profile with the times and workspaces of backward in a planned step."""
        try:
            seen = watch(self.step, plan, self.workspaces)
        except Exception as error:
            self._must_be_memory(error)
        else:
            ops = own_ops(Graph.of(profile), plan, seen.ops.names)
            found = _with_backward(profile, backward_of(profile, ops), seen.ops)
            step_ns = plain_time_ns(Graph.of(found), plan, seen.step_ns)
            return replace(found, step_time_ns=step_ns)
        self._ran_out(NO_BACKWARD)
        return profile

    def within(self, profile: Profile) -> Plan:
        """Return a plan whose step was measured within the budget.

        Where the device runs out of memory even under plans that need the least, the one for the
        budget is returned, not measured.
        """
        graph = Graph.of(profile)
        budget_bytes = target = self.budget.resolve(profile.plain_peak_bytes)
        smaller = list(SMALLER)
        wanted: Plan | None = None
        measured = miss = 0
        for _ in range(ROUNDS + len(SMALLER)):
            try:
                plan = self._search(graph, target)
            except InfeasibleBudgetError as error:
                raise InfeasibleBudgetError(
                    budget_bytes=budget_bytes,
                    min_peak_bytes=error.min_peak_bytes + miss,
                    holders=error.holders,
                ) from None
            plan = replace(plan, budget_bytes=budget_bytes)
            wanted = wanted or plan
            peak = self._peak(plan)
            if peak is None and not smaller:
                self._ran_out(UNMEASURED)
                return wanted
            if peak is None:
                self._ran_out(SMALLER_PLAN.format(format_bytes(plan.predicted_peak_bytes)))
                low = plan.floor_bytes if plan.floor_bytes is not None else target
                room = plan.predicted_peak_bytes - low
                target = low + int(room * smaller.pop(0))
            elif peak <= budget_bytes:
                if self._replays_right(graph, plan):
                    plan = replace(plan, measured_peak_bytes=peak)
                    return use_room(plan, partial(self._search, graph), partial(self._run, graph))
            else:
                measured, miss = peak, peak - plan.predicted_peak_bytes
                target = budget_bytes - miss  # less than this plan was predicted to take
        raise PlannerError(
            f"no plan for this {profile.model_class} held what it promised in {ROUNDS} rounds",
            numbers=f"budget {budget_bytes} B, last measured peak {measured} B",
            cause="the step changes from run to run",
            fix="make the step deterministic, or raise the budget",
        )

    def _search(self, graph: Graph, target_bytes: int) -> Plan:
        return from_profile(
            graph.profile,
            target_bytes,
            method=self.method,
            pins=self.pins,
            exclusions=self.exclusions,
            graph=graph,
        )

    def _run(self, graph: Graph, plan: Plan) -> int | None:
        """What a further plan takes; None where it cannot be used."""
        peak = self._peak(plan)
        if peak is not None and peak <= plan.budget_bytes and self._replays_right(graph, plan):
            return peak
        return None

    def _peak(self, plan: Plan) -> int | None:
        """What a plan takes, measured; None where the device runs out of memory."""
        try:
            peak = planned_peak(self.step, plan)
        except Exception as error:
            self._must_be_memory(error)
            return None
        self.rounds.append((plan.predicted_peak_bytes, peak))
        return peak

    def _replays_right(self, graph: Graph, plan: Plan) -> bool:
        """Whether checksums of a plan's replays are right; if not, units are left out from now on.

        Raises:
            ReplayError: they are wrong, and leaving units out does not change that.
        """
        if not plan.segments or plan.segments in self.probed:
            return True
        faults = probe(self.step, plan, by_digest=True)
        known = {e.unit for e in plan.exclusions}
        found = [e for e in exclusions_for(graph, plan, faults) if e.unit not in known]
        if faults and not found:
            raise unmended(plan.model_class, faults[0], self.exclusions)
        self.exclusions.extend(found)
        if not faults:
            self.probed.add(plan.segments)
        return not faults

    def _must_be_memory(self, error: Exception) -> None:
        if not ran_out_of_memory(error):
            raise error

    def _ran_out(self, note: str) -> None:
        """Say so, and give back what the failed run left; its error must be gone by now."""
        self.notes.append(note)
        gc.collect()
        release_cached(model_device(self.step.model))


def _with_others(profile: Profile, allocated: int) -> Profile:
    """Return the profile with what else the device holds, told by what it holds between steps."""
    storages = (*profile.storages, *outside(profile.storages, allocated, len(profile.ops)))
    peak = peak_of(storages, len(profile.ops))
    return replace(profile, storages=storages, plain_peak_bytes=peak)


def _with_backward(profile: Profile, ops: dict[int, int], seen: OpTimer) -> Profile:
    """Return the profile with what a planned step showed of ops of backward."""
    times = seen.times_ns()
    measured = {i: op.time_ns for i, op in enumerate(profile.ops) if op.phase == "forward"}
    measured |= {op: times[at] for op, at in ops.items()}
    inside = [(op, seen.workspace_bytes[at]) for op, at in ops.items()]
    storages = (*profile.storages, *(as_storage(op, size) for op, size in inside if size))
    peak = peak_of(storages, len(profile.ops))
    profile = replace(profile, storages=storages, plain_peak_bytes=peak)
    return with_op_times(profile, measured)
