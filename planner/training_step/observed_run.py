"""What one run of a user's own step shows: calls of the model, and whether a backward ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from planner.documents.step import TensorSpec
from planner.errors import StepError
from planner.training_step.call import Call
from planner.training_step.tree import tensors_with_paths


def model_device(model: nn.Module) -> torch.device:
    """Return where the model is: a device beside the host if any of it is there.

    The CPU where it has neither parameters nor buffers.
    """
    found = [tensor.device for tensor in (*model.parameters(), *model.buffers())]
    off_host = (device for device in found if device.type not in ("cpu", "meta"))
    return next(off_host, found[0] if found else torch.device("cpu"))


def autocast_dtype(device: str) -> str:
    """Return autocast's dtype for a kind of device as now in force, or an empty text when off."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return ""
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


class RootCalls:
    """What a run of a user's own step shows: calls of the model, their inputs and autocast."""

    def __init__(self) -> None:
        self.count = 0
        self.autocast = ""
        self.inputs: tuple[TensorSpec, ...] = ()

    @contextmanager
    def watching(self, model: nn.Module, traces: BackwardTraces | None = None) -> Iterator[None]:
        """Look at the model's calls during one run, and at what backward leaves."""
        self.count = 0
        handles = [model.register_forward_pre_hook(self._called, with_kwargs=True)]
        if traces is not None:
            handles.append(model.register_forward_hook(traces.returned))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _called(
        self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if self.count == 0:
            self.autocast = autocast_dtype(model_device(model).type)
            self.inputs = Call(args, kwargs).specs()
        self.count += 1


class BackwardTraces:
    """What a backward leaves behind: gradients, updated parameters, a hook that was called."""

    def __init__(self, model: nn.Module) -> None:
        self._reached = False
        self._before = self._facts(model)

    def returned(self, model: nn.Module, args: object, output: object) -> None:
        """The model returned: hook its output, through which a backward comes."""
        for _, tensor in tensors_with_paths(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._reach)

    def check(self, model: nn.Module) -> None:
        """Raise unless a backward has run.

        Raises:
            StepError: there is no trace of one.
        """
        if not self._reached and self._facts(model) == self._before:
            trained = sum(p.requires_grad for p in model.parameters())
            raise StepError(
                "the step ran no backward",
                f"0 of {trained} parameters got a gradient",
                "the step returns the loss and leaves backward to its caller",
                "call loss.backward() in the step, or pass inputs= and loss_fn= instead",
            )

    def _reach(self, gradient: torch.Tensor) -> None:
        self._reached = True

    def _facts(self, model: nn.Module) -> list[tuple[int, int, int]]:
        """Identity and version of every gradient, and the version of every parameter."""
        return [
            (id(p.grad), -1 if p.grad is None else p.grad._version, p._version)
            for p in model.parameters()
            if not p.is_inference()
        ]
