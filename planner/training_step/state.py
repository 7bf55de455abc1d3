"""`preserve`: run training steps on a user's model and leave no trace.

Used around every step that the profiler, the verifier and the measured search run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from planner.training_step.state_tensors import TensorSnapshot, quietly
from planner.training_step.state_values import ValueSnapshot, put_back
from planner.training_step.step import Step

Optimizer = torch.optim.Optimizer


@contextmanager
def preserve(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    step: Step | Callable[..., object] | None = None,
) -> Iterator[None]:
    """Put everything a training step changes back as it was, bit for bit, also after an error.

    That is: parameters, buffers and inputs (the same tensor objects, with their content and
    geometry), `.grad`, `requires_grad`, the grad mode, the random generators of torch, Python and
    NumPy, and the state of every object that can be reached from the model, the optimizer, the
    step's own functions and all hooks: attributes and containers, closures, iterators, generators,
    metrics, and the classes and globals of the user's own modules. Optimizers that nothing of this
    leads to are met when they make their update.

    What cannot be put back (a generator function, a file, a queue) raises when the step is about to
    use it, before anything is lost.

    Memory: buffers, gradients and inputs are copied to host memory. Parameters and optimizer state
    are copied always where the step may write them, that is with an optimizer or a step of the
    user's own. Of all other tensors the smallest are copied, up to 256 MiB; of the rest a checksum
    is kept, and a step that writes them is refused.

    Args:
        model: the model.
        optimizer: the optimizer, if the step runs one; a `Step` brings its own.
        step: the step that will run, a `Step` or the user's own function.

    Raises:
        StepError: on leaving, when large tensors were written of which there is no copy.

    >>> layer = nn.Linear(2, 2)
    >>> with preserve(layer):
    ...     layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad is None
    True
    """
    with preserving(model, optimizer, step)():
        yield


def preserving(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    step: Step | Callable[..., object] | None = None,
) -> Callable[[], AbstractContextManager[None]]:
    """Return `preserve` for several runs that all begin as it is now: state is looked for once."""
    return _Snapshot(model, optimizer, step).preserved


@contextmanager
def preserve_values(step: Step) -> Iterator[None]:
    """Put back what `preserve` does, but for the content of tensors: for steps that have none."""
    with quietly():
        values = _values(step.model, step.optimizer, step)
    with put_back(values):
        yield


class _Snapshot:
    """The tensors and the values of a model, its step and whatever optimizers update it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        step: Step | Callable[..., object] | None,
    ) -> None:
        if isinstance(step, Step) and optimizer is None:
            optimizer = step.optimizer
        own_step = step.is_users_own if isinstance(step, Step) else step is not None
        self._model = model
        self.tensors = TensorSnapshot()
        with quietly():
            self.values = _values(model, optimizer, step)
            writes = own_step or bool(self.values.optimizers)
            if isinstance(step, Step):
                for path, tensor in step.inputs.items():
                    self.tensors.add(tensor, path, written=True)
            for name, parameter in model.named_parameters():
                self.tensors.add(parameter, name, written=writes)
            for name, buffer in model.named_buffers():
                self.tensors.add(buffer, name, written=True)
            self._add_found(writes)
            self.tensors.take()

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put everything back after a run, as often as asked."""
        hook = optimizer_hooks.register_optimizer_step_pre_hook(self.updating)
        with put_back(self.values, self.tensors.restore, hook.remove):
            yield

    def updating(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        """An optimizer is about to make its update: remember one that was not met before."""
        if self.values.knows(optimizer):
            return
        _met.setdefault(self._model, weakref.WeakSet()).add(optimizer)
        with quietly():
            self.values.add(optimizer, type(optimizer).__name__)
            self._add_found(writes=True)
            self.tensors.take()

    def _add_found(self, writes: bool) -> None:
        for found in self.values.tensors:
            self.tensors.add(found.tensor, found.label, written=found.owned and writes)
        self.values.tensors.clear()


_met: weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Optimizer]]
_met = weakref.WeakKeyDictionary()
"""By model, optimizers that made an update in its steps and to which nothing known had led."""


def _values(
    model: nn.Module, optimizer: Optimizer | None, step: Step | Callable[..., object] | None
) -> ValueSnapshot:
    values = ValueSnapshot()
    for name, module in model.named_modules():
        values.add(module, name or "model")
    values.add(optimizer, "optimizer")
    for other in list(_met.get(model, ())):
        values.add(other, type(other).__name__)
    if isinstance(step, Step):
        values.add(step.arguments, "inputs")
        for name, function in step.functions.items():
            values.add(function, name)
    else:
        values.add(step, "step")
    values.add(_global_hooks(), "a hook on all modules or optimizers")
    values.add(_open_modes(), "a mode")
    return values


def _global_hooks() -> list[Any]:
    """The tables of the hooks that torch calls for every module and for every optimizer."""
    both = (*vars(module_hooks).items(), *vars(optimizer_hooks).items())
    return [table for name, table in both if name.startswith("_global_") and table]


def _open_modes() -> list[Any]:
    modes: list[Any] = [*_get_current_function_mode_stack()]
    return [*modes, *_get_current_dispatch_mode_stack()]
