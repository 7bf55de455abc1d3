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
from typing_extensions import override

from planner.memory.allocation_events import AllocationLog
from planner.memory.workspaces import LoggedWorkspaces, Workspaces

_MOST_BYTES = 2**30
"""Ops on more than this are taken to need no workspace, rather than to be tried."""


_TRIED = (
    *("convolution", "_convolution", "mm", "addmm", "bmm", "baddbmm", "dot", "mv", "embedding"),
    *("native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm"),
    *("_softmax", "_safe_softmax", "_log_softmax", "sum", "mean", "var", "var_mean", "std", "norm"),
    *("_scaled_dot_product_flash_attention_for_cpu", "gelu", "silu", "tanh", "sigmoid"),
    *("add", "sub", "mul", "div", "pow", "exp", "cat", "clone", "copy", "native_dropout"),
)
"""Ops, and those whose names add `_backward` and the like, that read no content that zeros would
break. A fused recurrent kernel reads a workspace of its own making, and dies of zeros."""


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


class _Kernel(NamedTuple):
    """An op, and its arguments with shapes in place of tensors."""

    func: Any
    leaves: list[Any]
    tree: Any

    @property
    def kind(self) -> Hashable:
        return self.func, str(self.tree), tuple(map(repr, self.leaves))


class KernelWorkspaces(Workspaces):
    """Notes the ops of a step that is not run, and tries each kind once when the step is over.

    Within backward no kernel may be tried: the profiler's session would end with the node.
    """

    def __init__(self) -> None:
        self._kernels: list[_Kernel | None] = []

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the next op."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if not _is_known(func) or not all(_can_be_tried(leaf) for leaf in leaves):
            self._kernels.append(None)
            return
        shapes = [_Shape.of(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        self._kernels.append(_Kernel(func, shapes, tree))

    @override
    def taken(self) -> list[int]:
        """Return the workspace of each op, in order; 0 where it cannot be tried."""
        known: dict[Hashable, int] = {}
        found = []
        for kernel in self._kernels:
            size = 0
            if kernel is not None:
                kind = kernel.kind
                if kind not in known:
                    known[kind] = _tried(*kernel)
                size = known[kind]
            found.append(size)
        return found


def _is_known(func: Any) -> bool:
    namespace, _, name = func._schema.name.partition("::")
    plain = name.rstrip("_")
    for ending in ("_dense_backward", "_backward_data", "_backward"):
        plain = plain.removesuffix(ending)
    return namespace == "aten" and plain in _TRIED


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
