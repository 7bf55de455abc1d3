"""The settings by which torch picks kernels, so that a replay picks what the forward picked.

`with torch.backends.cudnn.flags(enabled=False): out = model(x)` leaves backward outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_SETTINGS: tuple[tuple[Callable[[], bool], Callable[[bool], None]], ...] = (
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
    (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
)


def choices() -> tuple[bool, ...]:
    """Return the settings in force."""
    return tuple(get() for get, _ in _SETTINGS)


@contextmanager
def chosen(wanted: tuple[bool, ...]) -> Iterator[None]:
    """Put these settings in force for the length of a `with` block."""
    before = choices()
    if before == wanted:
        yield
        return
    _put(wanted)
    try:
        yield
    finally:
        _put(before)


def _put(values: tuple[bool, ...]) -> None:
    for (_, put), value in zip(_SETTINGS, values, strict=True):
        put(value)
