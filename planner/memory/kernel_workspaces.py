"""What CPU kernels take inside themselves, measured one by one on tensors of zeros.

Where a step is profiled without being run, its kernels' workspaces are measured once for each kind
of op, sizes, strides and dtypes, and remembered. One op at a time is run, on memory of its own.
Called by `planner.estimate.fake_profile`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from planner.memory.allocation_events import AllocationLog
from planner.memory.workspaces import LoggedWorkspaces

_MOST_BYTES = 2**30
"""Ops on more than this are taken to need no workspace, rather than to be tried."""


class _Shape(NamedTuple):
    """What a kernel's workspace depends on, of one tensor."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Shape:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def zeros(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype).zero_()


class KernelWorkspaces:
    """Measures and remembers."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def bytes_of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the workspace of an op on tensors like these; 0 where it cannot be tried."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if not all(_can_be_tried(leaf) for leaf in leaves) or torch.Tag.inplace_view in func.tags:
            return 0
        shapes = [_Shape.of(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        key = (func, str(tree), tuple(map(repr, shapes)))
        if key not in self._known:
            self._known[key] = _tried(func, shapes, tree)
        return self._known[key]


def _can_be_tried(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        plain = leaf.layout is torch.strided and leaf.device.type == "cpu"
        return plain and leaf.untyped_storage().nbytes() <= _MOST_BYTES
    return not isinstance(leaf, torch.Generator)


def _tried(func: Any, shapes: list[Any], tree: Any) -> int:
    if not AllocationLog.available():
        return 0
    with _disable_current_modes(), torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            leaves = [shape.zeros() if isinstance(shape, _Shape) else shape for shape in shapes]
            args, kwargs = pytree.tree_unflatten(leaves, tree)
            with LoggedWorkspaces() as log:
                log.begin()
                out = func(*args, **kwargs)
                log.end()
                del out
        except Exception:  # zeros are no indices, no kernel, no memory
            return 0
    return log.taken()[0]
