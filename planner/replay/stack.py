"""Takes a tape off torch's stacks, wherever it stands there.

A segment may close at another nesting level than it opened (a module that enters a mode and never
leaves it, an error in between); what others put above the tape stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

_KNOWN = ("torch", "planner")
push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def checkpoint_listens() -> bool:
    """Whether autograd's saved tensors go to `torch.utils.checkpoint`, which must see all."""
    top = _top_hooks(True)
    return top is not None and getattr(top[0], "__module__", "") == "torch.utils.checkpoint"


def foreign_modes() -> tuple[TorchDispatchMode, ...]:
    """Return the dispatch modes on the stack that are neither torch's nor ours, outermost first.

    Such a mode may change what ops compute.
    """
    if not torch._C._len_torch_dispatch_stack():
        return ()
    modes = _get_current_dispatch_mode_stack()
    return tuple(m for m in modes if type(m).__module__.partition(".")[0] not in _KNOWN)


@contextmanager
def only_modes(modes: tuple[TorchDispatchMode, ...]) -> Iterator[None]:
    """Have these dispatch modes on the stack, and no others, for the length of a `with` block."""
    with _disable_current_modes():
        for mode in modes:
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in modes:
                _pop_mode()


def remove_mode(mode: TorchDispatchMode) -> bool:
    """Take a dispatch mode off the stack; returns False when it is not there.

    While a mode handles an op, torch keeps it off the stack and puts it back afterwards.
    """
    if _get_current_dispatch_mode() is mode:
        _leave(mode)
        return True
    if mode not in _get_current_dispatch_mode_stack():
        return False
    above = []
    while (top := _get_current_dispatch_mode()) is not None and top is not mode:
        above.append(top)
        _pop_mode()
    _leave(mode)
    for other in reversed(above):
        _push_mode(other)
    return True


def _leave(mode: TorchDispatchMode) -> None:
    """Leave the mode on top of the stack, also when an interrupt hit an earlier attempt."""
    for flags in (
        mode.old_dispatch_mode_flags,
        mode.old_non_infra_dispatch_mode_flags,
        mode.old_without_ignore_compile_internals_dispatch_mode_flags,
    ):
        if not flags:
            flags.append(False)
    mode.__exit__(None, None, None)


def remove_strays(kinds: tuple[type, ...], mine: object) -> None:
    """Take modes and hooks of these kinds off, but `mine`: an interrupt hit their very opening."""
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, kinds) and mode is not mine:
            remove_mode(mode)
    while (top := _top_hooks(True)) is not None:
        owner = getattr(top[0], "__self__", None)
        if not isinstance(owner, kinds) or owner is mine:
            return
        _pop_hooks()


def remove_hooks(pack: Any) -> None:
    """Take the saved-tensor hooks with this pack function off the stack, if they are there."""
    above = []
    while (top := _top_hooks(True)) is not None:
        _pop_hooks()
        if top[0] == pack:
            break
        above.append(top)
    for hooks in reversed(above):
        push_hooks(*hooks)
