"""Inputs of another batch size from an example: its samples, repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from planner.errors import InvalidInputsError


def repeating(inputs: object) -> Callable[[int], Any]:
    """Return `make_inputs` for `best_batch`: the example's samples, repeated to a batch size.

    Every tensor whose first dimension is as long as the first tensor's is taken to be a batch.

    Args:
        inputs: a tensor, a tuple, a list or a mapping, nested at will.

    Raises:
        InvalidInputsError: there is no tensor with a first dimension.
    """
    found = next(_batches(inputs), None)
    if found is None:
        raise InvalidInputsError(
            "the inputs have no batch to make larger or smaller",
            cause="no tensor among them has a first dimension",
            fix="call planner.best_batch(model, make_inputs=...) with a function of your own",
        )

    def make_inputs(batch_size: int) -> Any:
        return _resized(inputs, found, torch.arange(batch_size) % found)

    return make_inputs


def _batches(value: object) -> Any:
    """The first dimensions of the tensors, in order."""
    if isinstance(value, torch.Tensor):
        if value.dim() and value.shape[0]:
            yield value.shape[0]
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _batches(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _batches(part)


def _resized(value: Any, batch: int, index: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        fits = value.dim() and value.shape[0] == batch
        return value.detach()[index.to(value.device)] if fits else value
    if isinstance(value, Mapping):
        return {name: _resized(part, batch, index) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_resized(part, batch, index) for part in value)
    return value
