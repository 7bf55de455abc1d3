"""From a recorded step to a plan, without running anything: facts from fakes, times as recorded."""

from __future__ import annotations

from dataclasses import replace

import torch

from planner.documents import Plan, Profile
from planner.errors import InfeasibleBudgetError
from planner.planning.offline import from_profile
from planner.profiler.cost_model import cost_model_for
from planner.profiler.fake import build_fake_profile
from planner.profiler.fingerprint import unit_prints
from planner.profiler.pooled import with_times
from planner.profiler.step import Step, model_device
from planner.profiler.timing import OpTimer
from planner.units import Budget

NOTE = (
    "made while training: the plain step was never run, nothing was measured, and replays were"
    " not compared with their originals"
)


def profile_of(step: Step, timer: OpTimer) -> Profile:
    """Return the profile of a step that ran once, with the times of the ops of its forward.

    Raises:
        StepError: the step needs the content of a tensor.
        InvalidModelError: it has tensors that cannot be fake.
    """
    device = model_device(step.model)
    profile = build_fake_profile(step, cost_model_for(device))
    return with_times(profile, timer)


def plan_from(profile: Profile, budget: Budget, step: Step) -> Plan:
    """Return the cheapest plan for a profile that leaves room for all else on the device.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget.
    """
    budget_bytes = budget.resolve(profile.plain_peak_bytes)
    besides = bytes_besides(profile, model_device(step.model))
    try:
        plan = from_profile(profile, budget_bytes - besides)
    except InfeasibleBudgetError as error:
        if not besides:
            raise
        raise InfeasibleBudgetError(
            budget_bytes=budget_bytes,
            min_peak_bytes=error.min_peak_bytes + besides,
            holders=(*error.holders, ("others on the device", besides)),
        ) from None
    return replace(plan, budget_bytes=budget_bytes, units=unit_prints(step.model), notes=(NOTE,))


def bytes_besides(profile: Profile, device: torch.device) -> int:
    """Return what lives on a CUDA device between steps that is none of the step's own.

    Other models, workspaces of libraries, and results of the step before that the loop still holds.
    The allocator tells; on other devices nothing does.
    """
    if device.type != "cuda":
        return 0
    own = sum(storage.bytes for storage in profile.storages if storage.birth < 0)
    return max(torch.cuda.memory_allocated(device) - own, 0)
