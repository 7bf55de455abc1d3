"""Lets others close hooks and dispatch modes that they opened before a tape, while it is open.

torch keeps saved-tensor hooks and dispatch modes on stacks, and who leaves a `with` block takes off
whatever is on top. A segment may open inside such a block and close outside of it (the block is
around some submodules of a unit, and the segment begins in the first and ends after the last): the
block's exit would take the tape off, and leave its own hooks or mode behind for good. The two
functions below take the place of torch's: tapes on top are taken off first and put back after.

HOOKS BELOW   what autograd packs in a segment goes to the tape, and not to hooks that were opened
              before it. The tape hands on to them what it keeps, as it is packed, and what it
              drops, once that is replayed, so that backward reads what it reads without a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

_autograd = torch._C._autograd
_top_hooks = _autograd._top_saved_tensors_default_hooks
_push_hooks = _autograd._push_saved_tensors_default_hooks
_plain_pop = _autograd._pop_saved_tensors_default_hooks
_plain_exit = TorchDispatchMode.__exit__


class Hooks(NamedTuple):
    """A pair of saved-tensor hooks."""

    pack: Callable[[torch.Tensor], Any]
    unpack: Callable[[Any], torch.Tensor]


class Interleaved:
    """What an open tape shows of itself here.

    Attributes:
        keeps_place: whether it stays on the stacks when others close what they opened below it.
    """

    keeps_place = False

    def hooks_below_changed(self) -> None:
        """Hooks that were opened before the tape are closed."""

    def modes_below_changed(self) -> None:
        """A dispatch mode that was entered before the tape is left."""


def hooks_on_top() -> Hooks | None:
    """Return the saved-tensor hooks that autograd calls now."""
    top = _top_hooks(True)
    return None if top is None else Hooks(*top)


def _pop() -> None:
    tapes = []
    while (top := _top_hooks(True)) is not None and _owner(top).keeps_place:
        _plain_pop()
        tapes.append(top)
    try:
        _plain_pop()
        for hooks in tapes:
            _owner(hooks).hooks_below_changed()
    finally:
        for hooks in reversed(tapes):
            _push_hooks(*hooks)


_NOBODY = Interleaved()


def _owner(hooks: Any) -> Interleaved:
    owner = getattr(hooks[0], "__self__", None)
    return owner if isinstance(owner, Interleaved) else _NOBODY


def _exit(self: TorchDispatchMode, *error: Any) -> None:
    tapes: list[Any] = []
    top: Any = _get_current_dispatch_mode()
    while top is not self and isinstance(top, Interleaved) and top.keeps_place:
        _plain_exit(top, None, None, None)  # type: ignore[arg-type]
        tapes.append(top)
        top = _get_current_dispatch_mode()
    try:
        _plain_exit(self, *error)
        for tape in tapes:
            tape.modes_below_changed()
    finally:
        for tape in reversed(tapes):
            tape.__enter__()


def let_others_leave() -> None:
    """Put the two functions in place, once."""
    _autograd._pop_saved_tensors_default_hooks = _pop
    TorchDispatchMode.__exit__ = _exit  # type: ignore[method-assign]
