"""Compares an op's arguments with recorded ones: values, views and constants.

Pure comparisons for the follower; what is read for the first time goes through its `Outside`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import copysign
from typing import Any, Protocol

import torch

from planner.replay.flow import PLAIN, Arg, bits_of
from planner.replay.trees import Many, Statistic

NUMBERS = (int, float)
"""Types of constants that may change from step to step."""

COMPARED = (int, float, bool, str)
"""Types of constants that `==` compares, but for the signs of zeros."""


class Values(Protocol):
    """The values that a run has read so far."""

    known: dict[int, int]
    base: list[int]

    def same_outside(self, wanted: Arg, got: torch.Tensor, slot: int | None) -> bool:
        """Whether the first sight of an outside value is the recorded one; enters it if so."""

    def note_geometry(self, wanted: Arg, got: torch.Tensor) -> None:
        """Take note where a tensor has another geometry than the recorded one."""


def same_tensor(values: Values, wanted: Arg, got: torch.Tensor) -> bool:
    """Whether a tensor holds the recorded value."""
    slot = values.known.get(got.untyped_storage()._cdata)
    if wanted.first:
        return values.same_outside(wanted, got, slot)
    if (
        slot != wanted.slot
        or got._version - values.base[slot] != wanted.counter
        or got.dtype is not wanted.dtype
    ):
        return False
    values.note_geometry(wanted, got)
    return True


def same_geometry(wanted: Arg, got: torch.Tensor) -> bool:
    """Whether a tensor has the recorded size, strides and offset."""
    return bool(
        got.size() == wanted.size
        and got.stride() == wanted.stride
        and got.storage_offset() == wanted.offset
    )


def same_kind(wanted: Arg, got: torch.Tensor) -> bool:
    """Whether a plain tensor has the recorded dtype and device, and is read the same way."""
    return bool(
        type(got) in PLAIN
        and got.dtype is wanted.dtype
        and got.device == wanted.device
        and bits_of(got) == wanted.bits
        and got.layout is torch.strided
        and not got.is_inference()
    )


def same_constant(values: Values, wanted: Any, got: Any) -> bool:
    """Whether an argument is the recorded one; zeros have signs, and NaN equals nothing."""
    if type(wanted) is Arg:
        return isinstance(got, torch.Tensor) and same_tensor(values, wanted, got)
    if isinstance(wanted, Many):
        return type(got) is wanted.kind and _same_items(values, wanted, got)
    if type(wanted) is Statistic:
        return isinstance(got, torch.Tensor)
    if isinstance(got, torch.Tensor):
        return False
    if isinstance(got, torch.Generator):
        return isinstance(wanted, torch.Generator)
    if type(wanted) is list:
        return type(got) is list and _same_items(values, wanted, got)
    if type(wanted) is not type(got) or wanted != got:
        return False
    if type(got) is complex:
        return repr(wanted) == repr(got)
    return type(got) is not float or copysign(1.0, wanted) == copysign(1.0, got)


def _same_items(values: Values, wanted: Any, got: Any) -> bool:
    return len(got) == len(wanted) and all(
        same_constant(values, w, g) for w, g in zip(wanted, got, strict=True)
    )


def same_bits(wanted: Any, got: Any) -> bool:
    """Whether tensors are read conjugated or negated as they were."""
    if type(wanted) is Arg:
        return isinstance(got, torch.Tensor) and bits_of(got) == wanted.bits
    if isinstance(wanted, (Many, tuple)) and isinstance(got, (list, tuple)):
        return all(same_bits(w, g) for w, g in zip(wanted, got, strict=False))
    return True


def taken_over(recorded: Any, now: Any) -> Any:
    """Return an argument of this step in its recorded form (TAKEN OVER in `arguments`).

    Numbers, and the geometry of tensors, are this step's; all else is as recorded.

    Returns:
        The tree, or NotImplemented where something else differs.
    """
    if type(recorded) is Arg:
        geometry = (tuple(now.size()), now.stride(), int(now.storage_offset()))
        return recorded._replace(
            size=geometry[0], stride=geometry[1], offset=geometry[2], direct=False
        )
    if isinstance(recorded, Many):
        kind, given = type(now), now
        if kind is not recorded.kind or len(given) != len(recorded):
            return NotImplemented
        items = [taken_over(r, n) for r, n in zip(recorded, given, strict=True)]
        return type(recorded)(items) if all_taken(items) else NotImplemented
    if type(recorded) is not type(now):
        return recorded if type(recorded) is Statistic else NotImplemented
    if type(now) in NUMBERS:
        return now
    if type(now) is list and all(type(n) in NUMBERS for n in (*recorded, *now)):
        return list(now)
    return recorded if _equal(recorded, now) else NotImplemented


def all_taken(items: Iterable[Any]) -> bool:
    """Whether every argument could be taken over."""
    return not any(item is NotImplemented for item in items)


def _equal(recorded: Any, now: Any) -> bool:
    if type(now) is complex:
        return repr(recorded) == repr(now)
    return isinstance(now, torch.Generator) or bool(recorded == now)


def number(recorded: Any, now: Any) -> Any:
    """Return a constant of this step: numbers may change, all else is as recorded."""
    return now if type(recorded) in NUMBERS and type(now) in NUMBERS else recorded
