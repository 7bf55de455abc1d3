"""The step that a stored plan was made for, against the model and inputs that a command names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from planner.errors import InvalidInputsError

if TYPE_CHECKING:
    from planner import Plan
    from planner.cli.target import Target


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


def _check_can_be_made(plan: Plan, target: Target) -> None:
    from planner.training_step.situation import differences

    step = plan.step
    own = f"{step.root_calls} calls of the model" if step.root_calls != 1 else ""
    added = "gradients that it adds to" if step.gradient_bytes else ""
    sharded = f"a step of one of {step.shards} ranks" if step.shards != 1 else ""
    changed = differences(plan, target.model, target.inputs)
    others = [f"{before} (here {now})" for _, before, now in changed]
    missing = [text for text in (own, added, sharded, *others) if text]
    if missing:
        raise InvalidInputsError(
            "the step that the plan was made for cannot be run from this target",
            f"the plan's step has {'; '.join(missing)}",
            "a target names a model, its inputs and a loss, and nothing else",
            "verify in Python, with the step itself: planner.verify(model, plan, step=...,"
            " optimizer=...)",
        )
