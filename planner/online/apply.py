"""The public `apply`: a plan at hand is installed; a budget alone is planned for on the fly."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, overload

from torch import nn

from planner.applier import apply as applier
from planner.applier.apply import Handle
from planner.budget import parse_budget
from planner.documents import Plan
from planner.errors import InvalidInputsError

if TYPE_CHECKING:
    from planner.online.handle import OnTheFlyHandle


@overload
def apply(model: nn.Module, plan: Plan | str | PathLike[str], *, strict: bool = ...) -> Handle: ...
@overload
def apply(model: nn.Module, *, budget_mb: float | str) -> OnTheFlyHandle: ...
def apply(
    model: nn.Module,
    plan: Plan | str | PathLike[str] | None = None,
    *,
    budget_mb: float | str | None = None,
    strict: bool = False,
) -> Handle | OnTheFlyHandle:
    """Install a plan on a model, or plan for a budget while the model trains.

    The model stays the same object, with the same class, module names, `state_dict` keys,
    parameters and attributes; only forward hooks are added.

    With a budget and no plan, the first training step runs with every block recomputed and is
    recorded; before the second one the plan is made, without running anything again, and from then
    on the model runs under it. Inputs that grow past those planned for are recorded and planned for
    in the same way. Evaluation does not count as a step.

    Args:
        model: the model that the plan was made for, or that is about to be trained.
        plan: a `Plan`, or the path of a plan file.
        budget_mb: in place of a plan, as for `planner.plan`.
        strict: raise where a step is not the one that the plan was made for (mode, larger inputs,
            optimizer state, autocast, gradients at the start), instead of warning once.

    Returns:
        A handle that takes everything off again, by `remove()` or as a context manager. On the
        fly its `plan` is None until one is made.

    Raises:
        InvalidInputsError: neither a plan nor a budget was given, or both.
        InvalidBudgetError: the budget makes no sense.
        StalePlanError: the model is not the one that the plan was made for; with `strict`, from
            the model's call or the optimizer's update, a step is not.
        InvalidModelError: a plan is on this model already, or it is no module.
        DocumentError: the plan file cannot be read.
    """
    if (plan is None) == (budget_mb is None):
        raise InvalidInputsError(
            "apply needs either a plan or a budget to plan for",
            f"{0 if plan is None else 2} of the two given",
            "" if plan is None else "a plan holds its own budget",
            "planner.apply(model, plan), or planner.apply(model, budget_mb=300)",
        )
    if plan is not None:
        return applier.apply(model, plan, strict)
    budget = parse_budget(budget_mb)
    from planner.online.handle import OnTheFlyHandle  # brings the search with it

    return OnTheFlyHandle(model, budget)
