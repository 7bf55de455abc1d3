"""The step that a stored plan was made for, against the model and inputs that a command names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from planner.errors import InvalidInputsError, StalePlanError

if TYPE_CHECKING:
    from planner import Plan
    from planner.cli.target import Target


def check_step(plan: Plan, target: Target) -> None:
    """Raise unless the target is in the mode and has the inputs that the plan was made for.

    Raises:
        StalePlanError: it has not.
    """
    found = list(_differences(plan, target))
    if found:
        changed = ", ".join(what for what, _, _ in found)
        raise StalePlanError(
            f"the plan was made for another step: {changed} changed",
            "; ".join(f"{before} in the plan, {now} now" for _, before, now in found),
            "the model is built in another mode, or with another batch or sequence length",
            "make the plan again: planner plan MODEL --budget ... -o PLAN",
        )


@contextmanager
def as_planned(plan: Plan, target: Target) -> Iterator[dict[str, Any]]:
    """Yield the arguments for `planner.verify`, with mode, optimizer and autocast of the plan.

    Raises:
        InvalidInputsError: the plan's step cannot be made from the target.
    """
    import torch

    from planner.estimate.device_profile import make_optimizer
    from planner.training_step.step import model_device

    if plan.step.mode != "mixed":
        target.model.train(plan.step.mode == "train")
    _check_can_be_made(plan, target)
    optimizer = make_optimizer(plan.step.optimizer, target.model)
    dtype = plan.step.autocast
    device = model_device(target.model).type
    with torch.autocast(device, getattr(torch, dtype)) if dtype else nullcontext():
        yield {**target.step_arguments(), "optimizer": optimizer}


def _differences(plan: Plan, target: Target) -> Iterator[tuple[str, str, str]]:
    from planner.training_step.call import call_source
    from planner.training_step.situation import mode_of, shown

    mode = mode_of(target.model)
    if plan.status != "manual" and mode != plan.step.mode:
        yield "mode", f"{plan.step.mode} mode", f"{mode} mode"
    if target.inputs is None or not plan.step.inputs:
        return
    inputs = call_source(target.inputs).peek().specs()
    if inputs != plan.step.inputs:
        yield "inputs", shown(plan.step.inputs), shown(inputs)


def _check_can_be_made(plan: Plan, target: Target) -> None:
    step = plan.step
    own = f"{step.root_calls} calls of the model" if step.root_calls != 1 else ""
    added = "gradients that it adds to" if step.gradient_bytes else ""
    sharded = f"a step of one of {step.shards} ranks" if step.shards != 1 else ""
    others = [f"{before} (here {now})" for _, before, now in _differences(plan, target)]
    missing = [text for text in (own, added, sharded, *others) if text]
    if missing:
        raise InvalidInputsError(
            "the step that the plan was made for cannot be run from this target",
            f"the plan's step has {'; '.join(missing)}",
            "a target names a model, its inputs and a loss, and nothing else",
            "verify in Python, with the step itself: planner.verify(model, plan, step=...,"
            " optimizer=...)",
        )
