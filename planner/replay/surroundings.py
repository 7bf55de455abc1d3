"""The surroundings in which a replay runs: below autograd, with the forward's choice of kernels.

`with torch.backends.cudnn.flags(enabled=False): out = model(x)` leaves backward outside, and so do
`torch.use_deterministic_algorithms` and its like.

SAFE FROM INTERRUPTS    a signal handler may raise between any two lines of Python. So whatever is
                  entered here is entered and left by torch's own C code within one `try` or `with`
                  of one running function; a suspended generator would restore it too late.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.replay.stack import foreign_modes, only_modes

T = TypeVar("T")


def _set_deterministic(value: bool) -> None:
    warn_only = torch._C._get_deterministic_algorithms_warn_only()
    torch._C._set_deterministic_algorithms(value, warn_only=warn_only)


def _precision(backend: str, op: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How many bits of a float32 the kernels of a backend use (TF32 and its like)."""
    put: Callable[..., object] = torch._C._set_fp32_precision_setter
    return partial(torch._C._get_fp32_precision_getter, backend, op), _several(put, backend, op)


def _several(put: Callable[..., object], *given: str) -> Callable[[Any], None]:
    def put_all(values: Any) -> None:
        put(*given, *(values if isinstance(values, tuple) else (values,)))

    return put_all


class Setting(NamedTuple):
    """How to read a setting, and how to change it."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


_PAIRS: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
    (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
    (torch._C._get_deterministic_algorithms, _set_deterministic),
    (torch.get_default_dtype, torch.set_default_dtype),
    *(
        _precision(backend, op)
        for backend in ("cuda", "mkldnn")
        for op in ("matmul", "conv", "rnn")
    ),
    (
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
        _several(torch._C._set_cublas_allow_fp16_reduced_precision_reduction),
    ),
    (
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
        _several(torch._C._set_cublas_allow_bf16_reduced_precision_reduction),
    ),
    (
        torch._C._get_cublas_allow_fp16_accumulation,
        torch._C._set_cublas_allow_fp16_accumulation,
    ),
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
)
_SETTINGS = tuple(Setting(get, put) for get, put in _PAIRS)


def choices(*, grad: bool = False) -> tuple[Any, ...]:
    """Return the settings in force by which torch picks kernels; on request the grad mode, too."""
    return tuple(setting.get() for setting in (_SETTINGS if grad else _SETTINGS[:-1]))


def switched_choices(func: Any, opening: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the settings and the grad mode for an op to which a difference may matter.

    None where they are those of the segment's opening, which is never under `no_grad`.
    """
    now = choices(grad=True)
    if now[:-1] == opening and (now[-1] or not _is_recurrent(func)):
        return None
    return now


_PARTS = {
    "matmul": ("mm", "bmm", "mv", "dot", "linear", "einsum"),
    "conv": ("conv",),
    "rnn": ("rnn", "lstm", "gru"),
}
"""Parts of the names of ops whose kernel depends on settings, by the name of their precision."""

_MKLDNN, _CUDNN, _DETERMINISTIC, _CUBLAS, _GRAD = (0,), (1, 2, 3), (4,), (12, 13, 14), (15,)
"""Positions in `_SETTINGS`; those of the precisions stand at 6 to 11."""

_PRECISION = {
    (backend, op): 6 + 3 * (backend == "mkldnn") + number
    for backend in ("cuda", "mkldnn")
    for number, op in enumerate(("matmul", "conv", "rnn"))
}
_ORDERED = ("index", "scatter", "put_", "embedding", "cumsum", "upsample", "pool", "bincount")
"""Parts of the names of ops whose kernel depends on the deterministic flag alone."""


def settings_of(func: Any, device: torch.device) -> tuple[int, ...]:
    """Return the positions in `choices()` of the settings by which torch picks an op's kernel."""
    name = func._schema.name.partition("::")[2]
    for kind, parts in _PARTS.items():
        if any(part in name for part in parts):
            if device.type == "cpu":
                grad = _GRAD if kind == "rnn" else ()
                return (*_MKLDNN, *_DETERMINISTIC, _PRECISION["mkldnn", kind], *grad)
            library = _CUBLAS if kind == "matmul" else _CUDNN
            return (*library, *_DETERMINISTIC, _PRECISION["cuda", kind])
    if "batch_norm" in name:
        return (*_CUDNN, *_DETERMINISTIC)
    return _DETERMINISTIC if any(part in name for part in _ORDERED) else ()


def _is_recurrent(func: Any) -> bool:
    name = func._schema.name
    return any(part in name for part in _PARTS["rnn"])


def settings_now(positions: tuple[int, ...]) -> list[tuple[int, Any]]:
    """Return these settings, each with its position in `choices()`."""
    return [(position, _SETTINGS[position].get()) for position in positions]


class Surroundings(NamedTuple):
    """Where a segment was opened: the settings, and the modes that may change what ops compute."""

    choices: tuple[Any, ...]
    modes: tuple[TorchDispatchMode, ...]

    @classmethod
    def here(cls) -> Surroundings:
        """Return those in force now."""
        return cls(choices(), foreign_modes())


def run_below(wanted: Surroundings, work: Callable[..., T], *args: Any) -> T:
    """Call `work` without autograd and without autocast, in these surroundings.

    The ops of a tape already are what autocast made of them. Gradients count as on all the same:
    some kernels ask (oneDNN's LSTM fills its workspace only then), and backward runs with them off.
    """
    if wanted.modes != foreign_modes():
        with only_modes(wanted.modes):
            return run_chosen(wanted.choices, lambda: _below(work, *args))
    return run_chosen(wanted.choices, lambda: _below(work, *args))


def run_chosen(wanted: tuple[Any, ...], work: Callable[[], T]) -> T:
    """Call `work` under these kernel choices."""
    before = choices(grad=len(wanted) == len(_SETTINGS))
    if wanted == before:
        return work()
    try:
        _put(before, wanted)
        return work()
    finally:
        _put(wanted, before)


def _below(work: Callable[..., T], *args: Any) -> T:
    grad, levels = torch.is_grad_enabled(), _batching_levels()
    try:
        torch._C._set_grad_enabled(True)
        for _ in range(levels):
            torch._C._vmapmode_decrement_nesting()
        with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return work(*args)
    finally:
        for _ in range(levels - _batching_levels()):  # an interrupt may have come in between
            torch._C._vmapmode_increment_nesting()
        torch._C._set_grad_enabled(grad)


def _batching_levels() -> int:
    """How deep backward is in `is_grads_batched`, which refuses random ops: a replay is not in it,
    since what it makes is the same for the whole batch of gradients.
    """
    try:  # an interrupt can strike right after either call, and is within the `try` then
        levels = torch._C._vmapmode_increment_nesting() - 1
    finally:
        torch._C._vmapmode_decrement_nesting()
    return int(levels)


def _put(old: tuple[Any, ...], new: tuple[Any, ...]) -> None:
    """Set what differs, and nothing else: setting a precision marks it as set by hand."""
    for setting, before, value in zip(_SETTINGS, old, new, strict=False):
        if before != value:
            setting.put(value)


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
