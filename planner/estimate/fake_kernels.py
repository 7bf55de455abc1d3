"""Stand-in kernels for ops that the CPU computes and that torch's own stand-in kernels refuse.

Used by `planner.estimate.fake_tensors`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_GROUPED_MM = getattr(torch.ops.aten, "_grouped_mm", None)
"""Experts of a mixture in one op. Its stand-in kernel takes half precision alone."""

_HALF = (torch.bfloat16, torch.float16)
_ALIGNED_BYTES = 16
"""Rows of its result begin at multiples of this."""


class StandIns(FakeTensorMode):
    """A mode of fake tensors with the kernels of this file."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the results of one op, without content."""
        grouped = _GROUPED_MM is not None and func is _GROUPED_MM.default
        if grouped and _refused(args[0]):
            given = [*args, *(kwargs or {}).values()]
            offsets = next((t for t in given[2:] if isinstance(t, torch.Tensor)), None)
            dtype = next((d for d in given if isinstance(d, torch.dtype)), args[0].dtype)
            with self:
                return _grouped_mm(args[0], args[1], offsets, dtype)
        return super().dispatch(func, types, args, kwargs)


def _refused(matrix: torch.Tensor) -> bool:
    return matrix.device.type == "cpu" and matrix.dtype not in _HALF


def _grouped_mm(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """Groups are a dimension of a matrix, or rows, columns or products between two offsets."""
    rows, columns = a.size(-2), b.size(-1)
    if a.dim() == b.dim() == 2:
        groups = [0 if offsets is None else offsets.size(0)]
    else:
        groups = [a.size(0)] if a.dim() == b.dim() else []
    aligned = _ALIGNED_BYTES // dtype.itemsize
    width = -(-columns // aligned) * aligned
    strides = [rows * width for _ in groups] + [width, 1]
    return torch.empty_strided([*groups, rows, columns], strides, dtype=dtype, device=a.device)
