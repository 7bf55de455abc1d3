"""The surroundings in which a replay runs: below autograd, with the forward's choice of kernels.

`with torch.backends.cudnn.flags(enabled=False): out = model(x)` leaves backward outside, and so do
`torch.use_deterministic_algorithms` and its like.

SAFE FROM INTERRUPTS    a signal handler may raise between any two lines of Python. So whatever is
                  entered here is entered and left by torch's own C code within one `try` or `with`
                  of one running function; a suspended generator would put it back too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def _set_deterministic(value: bool) -> None:
    warn_only = torch._C._get_deterministic_algorithms_warn_only()
    torch._C._set_deterministic_algorithms(value, warn_only=warn_only)


_SETTINGS: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
    (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
    (torch._C._get_deterministic_algorithms, _set_deterministic),
)


def choices() -> tuple[bool, ...]:
    """Return the settings in force by which torch picks kernels."""
    return tuple(get() for get, _ in _SETTINGS)


def run_below(wanted: tuple[bool, ...], work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call `work` without autograd and without autocast, under these kernel choices.

    The ops of a tape already are what autocast made of them. Gradients count as on all the same:
    some kernels ask (oneDNN's LSTM fills its workspace only then), and backward runs with them off.
    """
    before, grad = choices(), torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(True)
        if wanted != before:
            _put(wanted)
        with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return work(*args, **kwargs)
    finally:
        torch._C._set_grad_enabled(grad)
        if wanted != before:
            _put(before)


def _put(values: tuple[bool, ...]) -> None:
    for (_, put), value in zip(_SETTINGS, values, strict=True):
        put(value)


def _autocast_keys() -> Any:
    keys = None
    for name in (
        "AutocastCPU",
        "AutocastCUDA",
        "AutocastXPU",
        "AutocastMPS",
        "AutocastPrivateUse1",
    ):
        key = getattr(torch._C.DispatchKey, name, None)
        if key is not None:
            one = torch._C.DispatchKeySet(key)
            keys = one if keys is None else keys | one
    return keys


_AUTOCAST = _autocast_keys()
