"""What a model is, as a short hash: so that a plan or profile is not used on another model.

Covers the tree of module names and classes, the names, shapes, dtypes and `requires_grad` of
parameters and buffers, which of them are shared, and the hyperparameters in `extra_repr`. Does not
cover weights, device, train mode or hooks. Used by the recorder, the applier and `inputs`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_DIGITS = 16  # 64 bits: two models that meet by chance are one in 10**19
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")


def fingerprint(model: nn.Module) -> str:
    """Return the model's fingerprint, 16 hexadecimal digits, the same in any process.

    >>> fingerprint(nn.Linear(2, 3)) == fingerprint(nn.Linear(2, 3).eval())
    True
    >>> fingerprint(nn.Linear(2, 3)) == fingerprint(nn.Linear(2, 4))
    False
    """
    return _hash(unit_fingerprints(model))


def unit_fingerprints(model: nn.Module) -> dict[str, str]:
    """Return a fingerprint of each unit by qualified name; the root is the empty name.

    A unit's own covers what it holds itself and the names of its children, so a change inside one
    unit changes that unit's alone.
    """
    names = _Names(model)
    return {name: _hash(_describe(module, names)) for name, module in model.named_modules()}


class _Names:
    """The first name of every module and tensor, by identity: shows what is shared."""

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._first: dict[int, str] = {
            id(thing): name for name, thing in (*model.named_modules(), *tensors)
        }

    def of(self, thing: object) -> str:
        return self._first.get(id(thing), "")


def _describe(module: nn.Module, names: _Names) -> list[Any]:
    return [
        type(module).__qualname__,
        _hyperparameters(module),
        [[name, names.of(child)] for name, child in module._modules.items()],
        [_tensor(name, tensor, names) for name, tensor in _own_tensors(module)],
    ]


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    yield from module._parameters.items()
    for name, buffer in module._buffers.items():
        # A buffer that is not saved is often a cache that a forward fills or grows.
        yield name, None if name in module._non_persistent_buffers_set else buffer


def _tensor(name: str, tensor: torch.Tensor | None, names: _Names) -> list[Any]:
    if tensor is None:
        return [name]
    shape = "uninitialised" if is_lazy(tensor) else list(tensor.shape)
    return [name, names.of(tensor), shape, str(tensor.dtype), tensor.requires_grad]


def _hyperparameters(module: nn.Module) -> str:
    try:
        text = str(module.extra_repr())
    except Exception:  # a module that is not ready to be printed
        return ""
    # A function's default repr holds its address, which differs from process to process.
    return _ADDRESS.sub("0x", text)


def _hash(description: Any) -> str:
    text = json.dumps(description, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
