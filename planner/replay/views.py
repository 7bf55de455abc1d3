"""Rebuilds the view through which an op read a value, on the tensor that holds the value now."""

from __future__ import annotations

from typing import Any

import torch

from planner.errors import ReplayError
from planner.replay.flow import Arg


def copy_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same geometry on a copy of the whole storage."""
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def rebuild(base: torch.Tensor, arg: Arg) -> Any:
    """Return the view `arg` of the storage of `base`, the tensor that holds the value."""
    return base if arg.direct else rebuild_view(base, arg)


def rebuild_view(base: torch.Tensor, arg: Arg) -> Any:
    """Return the same where `base` may have another geometry than when it was recorded."""
    if base.dtype is arg.dtype and not base.is_conj() and not base.is_neg():
        return _with_bits(base.as_strided(arg.size, arg.stride, arg.offset), arg.bits)
    return on_storage(base.untyped_storage(), arg)


def on_storage(storage: torch.UntypedStorage, arg: Arg) -> torch.Tensor:
    """Return the view `arg` of a storage."""
    _check_extent(storage, arg)
    view = torch.empty(0, dtype=arg.dtype, device=storage.device)
    return _with_bits(view.set_(storage, arg.offset, arg.size, arg.stride), arg.bits)


def _with_bits(view: torch.Tensor, bits: int) -> torch.Tensor:
    if bits & 1:
        view = torch._conj(view)
    return torch._neg_view(view) if bits & 2 else view


def _check_extent(storage: torch.UntypedStorage, arg: Arg) -> None:
    """`set_` would grow a storage that is too small; refuse instead."""
    last = arg.offset + sum((n - 1) * s for n, s in zip(arg.size, arg.stride, strict=True) if n)
    need = (last + 1) * arg.dtype.itemsize if 0 not in arg.size else 0
    if need > storage.nbytes():
        raise ReplayError(
            "a tensor that a replay made is smaller than the one that backward needs",
            numbers=f"{storage.nbytes()} bytes made, {need} needed",
            cause="a setting that shapes results (the default dtype) changed within a segment",
            fix="exclude the unit from the plan: planner.plan(..., save=[...])",
        )
