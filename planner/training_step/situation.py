"""What a step's memory depends on besides the model: its situation, compared with a plan's.

A plan is made for a mode, sizes of inputs, an optimizer, autocast and gradients at the start.
Asked by the first steps under a plan and by `planner check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from planner.documents.plan import Plan
from planner.documents.step import Mode, StepInfo, TensorSpec
from planner.errors import StalePlanError
from planner.training_step.call import call_source
from planner.units import format_bytes


class Difference(NamedTuple):
    """One point in which a run is not what its plan was made for.

    Attributes:
        what: the point, as in "mode" or "optimizer".
        planned, found: both figures.
        effect: what it does to memory, as a clause.
    """

    what: str
    planned: str
    found: str
    effect: str


def mode_of(model: nn.Module) -> Mode:
    """Return whether the modules are in train or eval mode; mixed where both occur."""
    modes = {module.training for module in model.modules()}
    if len(modes) == 2:
        return "mixed"
    return "train" if True in modes else "eval"


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of the gradients that are there now."""
    return sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)


def other_mode(planned: StepInfo, model: nn.Module) -> Difference | None:
    """Return the difference in mode that lets a step need more than was planned for."""
    now = mode_of(model)
    if now in (planned.mode, "eval"):
        return None
    effect = "dropout and batch norm keep values in train mode that they do not keep in eval mode"
    return Difference("mode", f"{planned.mode} mode", f"{now} mode", effect)


def other_inputs(planned: StepInfo, inputs: tuple[TensorSpec, ...]) -> Difference | None:
    """Return the difference in inputs, where they are larger than or of another kind than planned.

    Smaller inputs need no more than was planned for.
    """
    if not planned.inputs or not inputs:
        return None
    known = {spec.path: spec for spec in planned.inputs}
    if len(inputs) == len(known) and all(_fits(spec, known.get(spec.path)) for spec in inputs):
        return None
    effect = "activations grow with the inputs"
    return Difference("inputs", shown(planned.inputs), shown(inputs), effect)


def other_autocast(planned: StepInfo, dtype: str) -> Difference | None:
    """Return the difference in autocast."""
    if dtype == planned.autocast:
        return None
    effect = "activations have another dtype"
    return Difference("autocast", planned.autocast or "off", dtype or "off", effect)


def other_gradients(planned: StepInfo, found_bytes: int) -> Difference | None:
    """Return the difference in gradients that are there when a step begins."""
    if found_bytes <= planned.gradient_bytes:
        return None
    effect = "gradients that are added to are there all step long"
    planned_bytes = format_bytes(planned.gradient_bytes)
    return Difference("gradients at the start", planned_bytes, format_bytes(found_bytes), effect)


def other_optimizer(planned: StepInfo, name: str, state_bytes: int) -> Difference | None:
    """Return the difference in optimizer state, where there is more than was planned for."""
    if state_bytes <= planned.optimizer_state_bytes or (
        name == planned.optimizer and not planned.optimizer_state_bytes
    ):
        return None
    before = f"{planned.optimizer or 'none'} with {format_bytes(planned.optimizer_state_bytes)}"
    now = f"{name} with {format_bytes(state_bytes)}"
    effect = "its state is there all step long"
    return Difference("optimizer", f"{before} of state", f"{now} of state", effect)


def other_wrapper(model: nn.Module) -> Difference | None:
    """Return the buckets of DistributedDataParallel around a model whose forward runs now."""
    wrapper: Any = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if wrapper is None or wrapper.gradient_as_bucket_view or torch.distributed.get_world_size() < 2:
        return None
    size = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    found = f"DistributedDataParallel, with gradient buckets of {format_bytes(size)}"
    effect = "the buckets are one more copy of the gradients; gradient_as_bucket_view=True saves it"
    return Difference("wrapper", "none", found, effect)


def shown(inputs: tuple[TensorSpec, ...]) -> str:
    """Return inputs as text."""
    return ", ".join(f"{t.path} {list(t.shape)} {t.dtype}" for t in inputs) or "none"


def _fits(spec: TensorSpec, planned: TensorSpec | None) -> bool:
    return (
        planned is not None
        and spec.dtype == planned.dtype
        and len(spec.shape) == len(planned.shape)
        and all(size <= most for size, most in zip(spec.shape, planned.shape, strict=True))
    )


def differences(plan: Plan, model: nn.Module, inputs: object) -> Iterator[tuple[str, str, str]]:
    """Yield in which points a model and its inputs are not those that a plan was made for.

    Args:
        inputs: as for `planner.profile`; None where they are not known.

    Yields:
        the point, what the plan has, and what is now.
    """
    mode = mode_of(model)
    if plan.status != "manual" and mode != plan.step.mode:
        yield "mode", f"{plan.step.mode} mode", f"{mode} mode"
    if inputs is None or not plan.step.inputs:
        return
    found = call_source(inputs).peek().specs()
    if found != plan.step.inputs:
        yield "inputs", shown(plan.step.inputs), shown(found)


def check_situation(plan: Plan, model: nn.Module, inputs: object) -> None:
    """Raise unless a model is in the mode and has the inputs that a plan was made for.

    Raises:
        StalePlanError: it has not.
    """
    found = list(differences(plan, model, inputs))
    if found:
        changed = ", ".join(what for what, _, _ in found)
        raise StalePlanError(
            f"the plan was made for another step: {changed} changed",
            "; ".join(f"{before} in the plan, {now} now" for _, before, now in found),
            "the model is built in another mode, or with another batch or sequence length",
            "make the plan again: planner plan MODEL --budget ... -o PLAN, or planner.plan(model,"
            " budget_mb=..., inputs=...)",
        )
