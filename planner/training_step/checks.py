"""What must hold before a training step is worth running; used by `step`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from planner.errors import InvalidInputsError, InvalidModelError
from planner.training_step.compiled import check_not_compiled

Optimizer = torch.optim.Optimizer


def check_model(model: object) -> None:
    """Check that this is a module whose parameters exist, not compiled as a whole.

    Raises:
        InvalidModelError: it is not.
    """
    if not isinstance(model, nn.Module):
        raise InvalidModelError(
            f"the model is a {type(model).__name__} and no torch.nn.Module",
            cause="the class or a function was passed in place of the module"
            if callable(model)
            else "",
            fix="pass the module itself",
        )
    check_not_compiled(model)
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise InvalidModelError(
            f"the parameter {lazy[0]} has no shape yet",
            f"{len(lazy)} uninitialised parameters",
            "a lazy module takes its shapes from its first input",
            "run the model once, model(x), before planning",
        )


def check_alone(model: nn.Module) -> None:
    """Check that a step of the model waits for no other process, before many steps are run.

    Raises:
        InvalidModelError: it is wrapped for several processes.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    ranks = distributed.get_world_size()
    wrapped = next((m for m in model.modules() if _meets_others(m)), None)
    if ranks > 1 and wrapped is not None:
        raise InvalidModelError(
            f"a {type(wrapped).__name__} cannot be planned for in one of several processes",
            f"{ranks} processes",
            "each would plan by its own times and run its own number of steps, and the others wait",
            "plan for the bare model in one process, save the plan, and apply it in all of them "
            "before the model is wrapped",
        )


def _meets_others(module: nn.Module) -> bool:
    sharded = sys.modules.get("torch.distributed.fsdp")
    kinds = (getattr(sharded, name, None) for name in ("FullyShardedDataParallel", "FSDPModule"))
    return isinstance(
        module, (nn.parallel.DistributedDataParallel, *(kind for kind in kinds if kind))
    )


def check_arguments(
    inputs: Any,
    loss_fn: Callable[..., object] | None,
    step: Callable[..., object] | None,
    optimizer: object,
) -> None:
    """Check the types of a step's arguments, and that they do not exclude each other.

    Raises:
        InvalidInputsError: they are wrong.
    """
    for name, value in (("loss_fn", loss_fn), ("step", step)):
        if value is not None and not callable(value):
            raise InvalidInputsError(
                f"{name} is a {type(value).__name__} and cannot be called",
                fix=f"pass a function as {name}",
            )
    for name, value in (("inputs", inputs), ("loss_fn", loss_fn)):
        if step is not None and value is not None:
            raise InvalidInputsError(
                f"both step and {name} were given",
                cause="step(model) runs forward, loss and backward itself",
                fix=f"leave out {name}, or leave out step",
            )
    if optimizer is not None and not _looks_like_an_optimizer(optimizer):
        raise InvalidInputsError(
            f"optimizer is a {type(optimizer).__name__} and no torch.optim.Optimizer",
            fix="pass the optimizer object, e.g. torch.optim.AdamW(model.parameters())",
        )


def check_optimizer(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Check that the optimizer updates this model.

    Raises:
        InvalidInputsError: it holds none of the model's parameters.
    """
    if optimizer is None:
        return
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise InvalidInputsError(
            f"the {type(optimizer).__name__} holds none of the model's parameters",
            f"{len(held)} parameters of another model",
            "it was made for a copy of the model, or before the model was replaced",
            "make the optimizer from this model's parameters()",
        )


def check_gradients(model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Check that backward has something to compute.

    Raises:
        InvalidModelError: neither a parameter nor an input requires a gradient.
    """
    parameters = list(model.parameters())
    if any(tensor.requires_grad for tensor in (*parameters, *inputs.values())):
        return
    kind = type(model).__name__
    if not parameters:
        raise InvalidModelError(
            f"{kind} has no parameters, so there is nothing to train",
            "0 parameters",
            "layers kept in a plain list are not registered: use nn.ModuleList",
            "register the layers, or pass an input with requires_grad=True",
        )
    raise InvalidModelError(
        f"nothing in {kind} requires a gradient",
        f"0 of {len(parameters)} parameters",
        "the model is frozen",
        "call requires_grad_(True) on what is trained",
    )


def check_devices(model: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Check that the inputs are where the model is.

    Host tensors of integers or single numbers (lengths, indices) pass beside inputs on the
    model's device, since some layers want them there.

    Raises:
        InvalidInputsError: an input is elsewhere.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    some_arrive = any(tensor.device in devices for tensor in inputs.values())
    if not some_arrive and torch.device("meta") in devices:
        return  # the step will not run, so real inputs only lend their shapes
    for path, tensor in inputs.items():
        if tensor.device in devices or not devices:
            continue
        small = tensor.dim() == 0 or not tensor.is_floating_point()
        if not (some_arrive and small and tensor.device.type == "cpu"):
            there = ", ".join(sorted(map(str, devices)))
            raise InvalidInputsError(
                f"the input {path} is on another device than the model",
                f"input on {tensor.device}, model on {there}",
                "one of them was not moved",
                f"move the input: x.to('{sorted(map(str, devices))[0]}')",
            )


def _looks_like_an_optimizer(value: object) -> bool:
    if isinstance(value, Optimizer):
        return True  # wrappers of it need not derive from it
    return not isinstance(value, type) and all(
        hasattr(value, name) for name in ("step", "param_groups", "state")
    )
