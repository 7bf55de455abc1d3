"""What a model is, as a short hash: so that a plan or profile is not used on another model.

Covers the tree of module names and classes, the names, shapes, dtypes and `requires_grad` of
parameters and buffers, which of them are shared, and the hyperparameters in `extra_repr`. Does not
cover weights, device, train mode or hooks. Used by the recorder, the applier and `inputs`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from planner.documents import UnitPrint

_DIGITS = 16  # 64 bits: two models that meet by chance are one in 10**19
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a qualified name
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
    return {
        name: _hash(_describe(module, names.seen_from(name)))
        for name, module in model.named_modules()
    }


def unit_prints(model: nn.Module) -> tuple[UnitPrint, ...]:
    """Return the model's structure as a plan stores it, units that are alike in one entry."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, mark in unit_fingerprints(model).items():
        groups.setdefault(_NUMBER.sub("*", name), {}).setdefault(mark, []).append(name)
    found = []
    for pattern, marks in groups.items():
        if len(marks) == 1:
            ((mark, names),) = marks.items()
            found.append(UnitPrint(pattern if len(names) > 1 else names[0], len(names), mark))
        else:
            found += [UnitPrint(n, 1, mark) for mark, names in marks.items() for n in names]
    return tuple(found)


def changed_units(model: nn.Module, prints: Sequence[UnitPrint]) -> tuple[str, ...]:
    """Return the units of a model that differ from stored prints, that are new or that are gone."""
    stored = {print_.units: print_ for print_ in prints}
    left = {print_.units: print_.count for print_ in prints}
    changed = []
    for name, mark in unit_fingerprints(model).items():
        key = name if name in stored else _NUMBER.sub("*", name)
        if key not in stored or stored[key].fingerprint != mark:
            changed.append(name or ".")
        if key in left:
            left[key] -= 1
    return (*changed, *(f"{units or '.'} (gone)" for units, count in left.items() if count > 0))


class _Names:
    """The first name of every module and tensor, by identity: shows what is shared."""

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._first: dict[int, str] = {
            id(thing): name for name, thing in (*model.named_modules(), *tensors)
        }

    def seen_from(self, unit: str) -> Callable[[object], str]:
        """Return how a unit names things: its own relative to itself, shared ones in full."""
        prefix = f"{unit}." if unit else ""

        def name_of(thing: object) -> str:
            name = self._first.get(id(thing), "")
            return name.removeprefix(prefix) if name.startswith(prefix) else f"/{name}"

        return name_of


def _describe(module: nn.Module, name_of: Callable[[object], str]) -> list[Any]:
    return [
        type(module).__qualname__,
        _hyperparameters(module),
        [[name, name_of(child)] for name, child in module._modules.items()],
        [_tensor(name, tensor, name_of) for name, tensor in _own_tensors(module)],
    ]


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    yield from module._parameters.items()
    for name, buffer in module._buffers.items():
        # A buffer that is not saved is often a cache that a forward fills or grows.
        yield name, None if name in module._non_persistent_buffers_set else buffer


def _tensor(name: str, tensor: torch.Tensor | None, name_of: Callable[[object], str]) -> list[Any]:
    if tensor is None:
        return [name]
    shape = "uninitialised" if is_lazy(tensor) else list(tensor.shape)
    return [name, name_of(tensor), shape, str(tensor.dtype), tensor.requires_grad]


def _hyperparameters(module: nn.Module) -> str:
    try:
        text = str(module.extra_repr())
    except Exception:  # a module that is not ready to be printed
        return ""
    # A function's default repr holds its address, which differs from process to process.
    return _ADDRESS.sub("0x", text)


def _hash(description: object) -> str:
    text = json.dumps(description, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
