"""Compares an op's arguments with recorded ones: values, views and constants.

Pure comparisons for the follower; what is read for the first time goes through its `Outside`.
"""

from __future__ import annotations

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


def same_tensor(values: Values, wanted: Arg, got: torch.Tensor) -> bool:
    """Whether a tensor holds the recorded value, in the recorded view."""
    slot = values.known.get(got.untyped_storage()._cdata)
    if wanted.first:
        return values.same_outside(wanted, got, slot)
    return bool(
        slot == wanted.slot
        and got.size() == wanted.size
        and got.stride() == wanted.stride
        and got.storage_offset() == wanted.offset
        and got._version - values.base[slot] == wanted.counter
        and got.dtype is wanted.dtype
    )


def same_view(wanted: Arg, got: torch.Tensor) -> bool:
    """Whether a plain tensor has the recorded geometry, dtype and device."""
    return bool(
        type(got) in PLAIN
        and got.size() == wanted.size
        and got.stride() == wanted.stride
        and got.storage_offset() == wanted.offset
        and got.dtype is wanted.dtype
        and got.device == wanted.device
        and bits_of(got) == wanted.bits
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


def same_keywords(values: Values, wanted: Any, kwargs: dict[str, Any]) -> bool | None:
    """Return True when keywords are equal, False when only numbers differ, else None."""
    if len(wanted) != len(kwargs):
        return None
    same = True
    for (name, recorded), (other, got) in zip(wanted, kwargs.items(), strict=True):
        if name != other:
            return None
        if not same_constant(values, recorded, got):
            if type(recorded) is not type(got) or type(got) not in NUMBERS:
                return None
            same = False
    return same


def same_bits(wanted: Any, got: Any) -> bool:
    """Whether tensors are read conjugated or negated as they were."""
    if type(wanted) is Arg:
        return isinstance(got, torch.Tensor) and bits_of(got) == wanted.bits
    if isinstance(wanted, (Many, tuple)) and isinstance(got, (list, tuple)):
        return all(same_bits(w, g) for w, g in zip(wanted, got, strict=False))
    return True


def number(recorded: Any, now: Any) -> Any:
    """Return a constant of this step: numbers may change, all else is as recorded."""
    return now if type(recorded) in NUMBERS and type(now) in NUMBERS else recorded
