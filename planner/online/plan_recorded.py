"""From a recorded step to a plan, without running anything: facts from fakes, times as recorded."""

from __future__ import annotations

from dataclasses import replace

import torch

from planner.budget import Budget
from planner.documents import Plan, Profile
from planner.estimate.cost_model import cost_model_for
from planner.estimate.fake_profile import build_fake_profile
from planner.memory.allocator import allocated_bytes, blocks_of, outside
from planner.memory.allocator_settings import remarks
from planner.memory.rounding import UNSPLIT_BYTES
from planner.online.foreign_hooks import effects_undone
from planner.online.op_sizes import SizingTimer, with_sizes
from planner.planning.offline import from_profile
from planner.profiler.pooled import with_times
from planner.training_step.fingerprint import unit_prints
from planner.training_step.step import Step, model_device

NOTE = (
    "made while training: the plain step was never run, and nothing was measured; the first step"
    " under the plan compares replays with checksums of their originals"
)

UNSPLIT = (
    "a tensor of more than 1 MiB may count for up to 1 MiB more, where the allocator gives it a"
    " block that it used before"
)


def profile_of(step: Step, timer: SizingTimer) -> Profile:
    """Return the profile of a step that ran once, with what its forward showed: times and sizes.

    Raises:
        StepError: the step needs the content of a tensor.
        InvalidModelError: it has tensors that cannot be fake.
    """
    device = model_device(step.model)
    with effects_undone(step.model, step.optimizer):
        profile = build_fake_profile(step, cost_model_for(device))
    return with_times(with_others(with_sizes(profile, timer), device), timer)


def plan_from(profile: Profile, budget: Budget, step: Step) -> Plan:
    """Return the cheapest plan for a profile.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget.
    """
    budget_bytes = budget.resolve(profile.plain_peak_bytes)
    plan = from_profile(profile, budget_bytes)
    return replace(plan, units=unit_prints(step.model), notes=(NOTE, *_doubts(profile, step)))


def _doubts(profile: Profile, step: Step) -> tuple[str, ...]:
    """Notes on what may make the peak differ from the prediction, where an allocator counts."""
    blocks = blocks_of(model_device(step.model))
    if blocks is None:
        return ()
    split = not blocks.whole_pages or all(s.bytes <= UNSPLIT_BYTES for s in profile.storages)
    return remarks() if split else (UNSPLIT, *remarks())


def with_others(profile: Profile, device: torch.device) -> Profile:
    """Return a profile with what else lives on a device between steps.

    Other models, workspaces of libraries, and results of the step before that the loop still holds.
    Known where the allocator counts.
    """
    others = outside(profile.storages, allocated_bytes(device), len(profile.ops))
    return replace(
        profile,
        storages=(*profile.storages, *others),
        plain_peak_bytes=profile.plain_peak_bytes + sum(storage.bytes for storage in others),
    )
