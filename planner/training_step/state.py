"""`preserve`: run training steps on a user's model and leave no trace.

Used around every step that the profiler, the verifier and the measured search run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from planner.training_step.state_random import random_restorer
from planner.training_step.state_tensors import TensorSnapshot, quietly
from planner.training_step.state_values import ValueSnapshot
from planner.training_step.step import Step


@contextmanager
def preserve(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: Step | Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Put everything a training step changes back as it was, bit for bit, also after an error.

    That is: parameters, buffers and inputs (the same tensor objects, with their content and
    geometry), `.grad`, `requires_grad`, all attributes of all modules with the containers in them
    (train flags, hooks, counters, caches), the optimizer's state and groups, the grad mode, and the
    random generators of torch, Python, NumPy and those that modules own.

    Memory: buffers, gradients and inputs are copied to host memory. Parameters and optimizer state
    are copied always where the step may write them, that is with an optimizer or a step of the
    user's own. Otherwise they are copied up to 256 MiB; beyond, a checksum is kept, and a forward
    that writes parameters is refused. Not covered: globals, attributes of classes, and whatever a
    user's step holds outside the model and the optimizer.

    Args:
        model: the model.
        optimizer: the optimizer, if the step runs one; a `Step` brings its own.
        step: the step that will run, a `Step` or the user's own function.

    Raises:
        StepError: on leaving, when large parameters were written in a step without an optimizer.

    >>> layer = nn.Linear(2, 2)
    >>> with preserve(layer):
    ...     layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad is None
    True
    """
    if isinstance(step, Step) and optimizer is None:
        optimizer = step.optimizer
    own_step = step.is_users_own if isinstance(step, Step) else step is not None
    writes = own_step or optimizer is not None
    tensors = TensorSnapshot()
    values = ValueSnapshot(lambda tensor, label: tensors.add(tensor, label, written=writes))
    with quietly():
        if isinstance(step, Step):
            _add_inputs(step, tensors, values)
        _add_model(model, tensors, values, writes)
        values.add(optimizer, "optimizer")
        tensors.take()
    with ExitStack() as on_exit:  # the last one pushed runs first, and all run whatever happens
        on_exit.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        on_exit.callback(random_restorer())
        on_exit.callback(tensors.restore)
        on_exit.callback(values.restore)
        yield


def _add_model(
    model: nn.Module, tensors: TensorSnapshot, values: ValueSnapshot, written: bool
) -> None:
    for name, parameter in model.named_parameters():
        tensors.add(parameter, name, written=written)
    for name, buffer in model.named_buffers():
        tensors.add(buffer, name, written=True)
    for name, module in model.named_modules():
        values.add(module, name or "model")


def _add_inputs(step: Step, tensors: TensorSnapshot, values: ValueSnapshot) -> None:
    for path, tensor in step.inputs.items():
        tensors.add(tensor, path, written=True)
    values.add(step.arguments, "inputs")
