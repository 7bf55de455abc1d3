"""The optimizers of a model, found by their first update."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from planner.training_step.storages import tensors_in

Optimizer = torch.optim.Optimizer


class Updates:
    """Sees every optimizer update in the process and remembers those of the model's parameters.

    Args:
        model: the model.
        updated: called after each update of the model. Held weakly, as is the model.
    """

    def __init__(self, model: nn.Module, updated: Callable[[], None]) -> None:
        self._model = weakref.ref(model)
        self._updated = weakref.WeakMethod(updated)
        self._found: dict[int, weakref.ref[Optimizer]] = {}
        there = weakref.ref(self)

        def hook(optimizer: Optimizer, args: object, kwargs: object) -> None:
            found = there()
            if found is not None:
                found.on_update(optimizer)

        self._hook = register_optimizer_step_post_hook(hook)
        weakref.finalize(self, self._hook.remove)

    def remove(self) -> None:
        """Take the hook off."""
        self._hook.remove()

    def ids(self) -> frozenset[int]:
        """Return the identities of the optimizers found so far."""
        return frozenset(self._found)

    def by_size(self) -> list[Optimizer]:
        """Return the optimizers found so far, the one with most state last."""
        alive = [found for ref in self._found.values() if (found := ref()) is not None]
        return sorted(alive, key=state_bytes)

    def on_update(self, optimizer: Optimizer) -> None:
        """Remember an optimizer of the model, which has just made an update."""
        known, model = self._found.get(id(optimizer)), self._model()
        if known is None or known() is not optimizer:
            if model is None or not _holds(optimizer, model):
                return
            self._found[id(optimizer)] = weakref.ref(optimizer)
        updated = self._updated()
        if updated is not None:
            updated()


def state_tensors(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the tensors in an optimizer's state."""
    return list(tensors_in(optimizer.state.values()))


def state_bytes(optimizer: Optimizer) -> int:
    """Return the bytes of the tensors in an optimizer's state."""
    return sum(tensor.nbytes for tensor in state_tensors(optimizer))


def _holds(optimizer: Optimizer, model: nn.Module) -> bool:
    mine = {id(parameter) for parameter in model.parameters()}
    return any(id(p) in mine for group in optimizer.param_groups for p in group["params"])
