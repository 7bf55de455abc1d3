"""Arrays and pointers to a tensor's memory: whoever has one may write without an op, at any time.

`Tensor.numpy`, `numpy.asarray`, DLPack and `Tensor.data_ptr` hand a tensor's memory out. A tape is
notified, and takes each later read of that memory as a new value from outside: it stays, and its
replays are checked against the whole content. This costs the memory of such tensors, and a checksum
of it in each step. An address that comes from elsewhere (a storage, C++ code) is not seen here; see
`content` for what a recorded run notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


class Exposed:
    """Stands for the sharing in the records of a tape, where ops have their overload."""

    def __repr__(self) -> str:
        return "tensor.numpy"


EXPOSED = Exposed()
plain_numpy = torch.Tensor.numpy
"""Without a notice: for the tensors of the engine itself."""
_plain_dlpack = torch.Tensor.__dlpack__
_plain_data_ptr = torch.Tensor.data_ptr


def _numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    array = plain_numpy(self, *args, **kwargs)
    _notify(self)
    return array


def _dlpack(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    capsule = _plain_dlpack(self, *args, **kwargs)
    _notify(self)
    return capsule


def _data_ptr(self: torch.Tensor) -> int:
    address: int = _plain_data_ptr(self)
    _notify(self)
    return address


listeners: list[Callable[[torch.Tensor], object]] = []
"""Called with each tensor whose memory is handed out, beside the modes on the stack."""


def _notify(tensor: torch.Tensor) -> None:
    for listener in listeners:
        listener(tensor)
    if not torch._C._len_torch_dispatch_stack():
        return
    for mode in _get_current_dispatch_mode_stack():
        exposed = getattr(mode, "memory_exposed", None)
        if exposed is not None:
            exposed(tensor)


def notice_arrays() -> None:
    """Put the three functions in the place of torch's, once."""
    _numpy.__doc__, _dlpack.__doc__ = plain_numpy.__doc__, _plain_dlpack.__doc__
    _data_ptr.__doc__ = _plain_data_ptr.__doc__
    torch.Tensor.numpy = _numpy  # type: ignore[method-assign, assignment]
    torch.Tensor.__dlpack__ = _dlpack  # type: ignore[method-assign]
    torch.Tensor.data_ptr = _data_ptr  # type: ignore[method-assign, assignment]
