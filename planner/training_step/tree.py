"""Tensors inside the nested values that models take and return, each with where it stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree


def tensors_with_paths(value: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor in a value and its path, in order.

    Goes through mappings, lists, tuples, dataclasses and whatever is registered with torch's
    pytree; anything else holds no tensors as far as this function is concerned.

    >>> [path for path, _ in tensors_with_paths({"a": [torch.ones(1)], "b": 2}, "kwargs")]
    ["kwargs['a'][0]"]
    """
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    for step, child in _children(value):
        yield from tensors_with_paths(child, path + step)


def host_copies(value: object) -> tuple[torch.Tensor, ...]:
    """Return a copy of every tensor in a value, detached and in host memory."""
    return tuple(host_copy(tensor) for _, tensor in tensors_with_paths(value))


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy that takes no memory of an accelerator, whose peaks are measured."""
    return tensor.detach().to("cpu", copy=True)


def _children(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif type(value) in pytree.SUPPORTED_NODES:
        leaves, _ = pytree.tree_flatten_with_path(value)
        yield from ((pytree.keystr(key), leaf) for key, leaf in leaves)
