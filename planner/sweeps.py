"""The public function `sweep`: the least overhead for every budget.

A module of its own, as a sweep of a stored profile imports no torch; `planner.api` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from planner.analysis.sweep import sweep_profile
from planner.documents import Pins, Profile
from planner.documents.frontier import Frontier

if TYPE_CHECKING:
    import torch
    from torch import nn


def sweep(
    model_or_profile: nn.Module | Profile | str | PathLike[str],
    budgets: Sequence[float | str] | None = None,
    *,
    inputs: object = None,
    loss_fn: Callable[[Any], object] | None = None,
    step: Callable[[nn.Module], object] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    save: Sequence[str] = (),
    recompute: Sequence[str] = (),
    baselines: bool = True,
) -> Frontier:
    """Return the least predicted overhead for each budget, and where the curve bends.

    All budgets are answered by one search.

    Args:
        model_or_profile: a model, a `Profile`, or the path of a stored profile.
        budgets: as `budget_mb` of `planner.plan`; by default 50 from the smallest peak found
            to the plain step's peak. Budgets below the smallest peak found have no point.
        inputs, loss_fn, step, optimizer: as for `planner.profile`, when given a model.
        save, recompute: pins, as for `planner.plan`.
        baselines: also play placements by hand (every block, best k of n, uniform, sqrt).

    Raises:
        InfeasibleBudgetError: all budgets given are below the smallest peak found.
        InvalidBudgetError, UnknownUnitError: see `planner.plan`.
        ProfileNotFoundError, InvalidModelError, InvalidInputsError, StepError: see
            `planner.profile`.
    """
    profile = _profile(model_or_profile, inputs, loss_fn, step, optimizer)
    pins = Pins.of(save, recompute)
    return sweep_profile(profile, budgets, pins=pins, baselines=baselines)


def _profile(given: Any, inputs: object, loss_fn: Any, step: Any, optimizer: Any) -> Profile:
    if isinstance(given, Profile):
        return given
    if isinstance(given, (str, PathLike)):
        return Profile.load(given)
    from planner.api import profile
    from planner.training_step.fingerprint import fingerprint
    from planner.training_step.inputs import find_profile

    if inputs is None and step is None:
        stored = find_profile(fingerprint(given))
        if stored is not None:
            return stored
    return profile(given, inputs=inputs, loss_fn=loss_fn, step=step, optimizer=optimizer)
