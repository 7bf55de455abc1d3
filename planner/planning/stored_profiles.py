"""Stored profiles: the one to plan from, and whether it is of the step at hand."""

from __future__ import annotations

from os import PathLike

from torch import nn

from planner.documents import Profile, StepInfo
from planner.errors import StalePlanError
from planner.training_step.fingerprint import fingerprint
from planner.training_step.inputs import find_profile
from planner.training_step.step import Step


def given_profile(
    model: nn.Module, profile: Profile | str | PathLike[str] | None, has_step: bool
) -> Profile | None:
    """Return the profile to plan from, if there is one and nothing better was given.

    Raises:
        StalePlanError: the given one is of another model.
        DocumentError: its file cannot be read.
    """
    if profile is None:
        return None if has_step else find_profile(fingerprint(model))
    found = profile if isinstance(profile, Profile) else Profile.load(profile)
    mine = fingerprint(model)
    if found.fingerprint != mine:
        raise StalePlanError(
            f"the profile is of another model than this {type(model).__name__}",
            numbers=f"fingerprint {mine} found, {found.fingerprint} in the profile",
            cause="the model's structure changed since it was profiled",
            fix="profile it again: planner.profile(model, inputs=...)",
        )
    return found


def check_same_step(profile: Profile, step: Step | None, optimizer: object) -> None:
    """Raise unless the profile is of this step, as far as the step shows itself before it runs.

    Args:
        profile: the stored profile.
        step: the step at hand, if inputs or a step were given.
        optimizer: the optimizer that was given: an object, a name, or None.

    Raises:
        StalePlanError: inputs or optimizer differ.
    """
    if optimizer is not None and not isinstance(optimizer, str):
        _check("optimizer", type(optimizer).__name__, profile.step.optimizer or "none")
    if step is not None and not step.is_users_own:
        _check("inputs", _inputs(step.describe()), _inputs(profile.step))


def _inputs(info: StepInfo) -> str:
    return ", ".join(f"{t.path} {list(t.shape)} {t.dtype}" for t in info.inputs) or "none"


def _check(what: str, given: str, profiled: str) -> None:
    if given != profiled:
        raise StalePlanError(
            f"the profile is of another step: its {what} differ",
            numbers=f"{given} given, {profiled} in the profile",
            cause="the profile was made with another batch, sequence length or optimizer",
            fix="profile this step: planner.profile(model, inputs=..., optimizer=...)",
        )
