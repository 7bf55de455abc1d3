"""From a model's output to the scalar that backward begins at; used by `step`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from planner.errors import StepError
from planner.training_step.tree import tensors_with_paths

_FIX = "pass loss_fn=fn where fn(output) returns a scalar tensor"


def default_loss(output: object) -> torch.Tensor:
    """Return the output's own loss, or the sum of the floating-point tensors in the output.

    A loss of its own is an attribute or key ``loss`` that holds a tensor. In the sum, tensors
    that require no gradient are left out where others do.

    Raises:
        StepError: the output holds no floating-point tensor.

    >>> default_loss({"a": torch.ones(2, 3), "b": [torch.ones(4)], "c": 7})
    tensor(10.)
    """
    own = _own_loss(output)
    if own is not None:
        return own
    tensors = [found for _, found in tensors_with_paths(output) if found.is_floating_point()]
    tensors = [found for found in tensors if found.requires_grad] or tensors
    if not tensors:
        raise StepError(
            "the model's output gives no loss",
            f"0 floating-point tensors in a {type(output).__name__}",
            "the output is of a kind that planner cannot look into",
            _FIX,
        )
    total = tensors[0].sum()
    for tensor in tensors[1:]:
        total = total + tensor.sum().to(total.device)
    return total


def check_loss(loss: object) -> None:
    """Check that backward can begin at this loss.

    Raises:
        StepError: not a tensor, not one element, or without a gradient.
    """
    if not isinstance(loss, torch.Tensor):
        raise StepError(f"the loss is a {type(loss).__name__} and no tensor", fix=_FIX)
    if loss.numel() != 1:
        raise StepError(
            "the loss is not a scalar",
            f"shape {tuple(loss.shape)}, {loss.numel()} elements where 1 is needed",
            "the loss was not reduced",
            "reduce it: loss_fn=lambda output: your_loss(output).mean()",
        )
    if not loss.requires_grad:
        raise StepError(
            "the loss requires no gradient",
            f"dtype {str(loss.dtype).removeprefix('torch.')}",
            "the model's forward detaches its output, runs under no_grad, or uses only frozen"
            " parameters",
            "make the output depend on a parameter with requires_grad=True, or " + _FIX,
        )


def _own_loss(output: object) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return None
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else None
