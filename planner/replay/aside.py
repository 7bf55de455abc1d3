"""Lets `torch.func` transforms work inside a segment: the tape's hooks stand aside for them.

Transforms save tensors of their own inner levels and therefore disable saved-tensor hooks while
they run; torch refuses that while any hooks are there. The two functions below take the place of
torch's: hooks whose owner has `stands_aside` set are taken off the stack first and pushed again
when hooks are enabled again. What is saved in between stays in memory as without a plan. All other
hooks are refused as before.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

_autograd = torch._C._autograd
_top_hooks = _autograd._top_saved_tensors_default_hooks
_pop_hooks = _autograd._pop_saved_tensors_default_hooks
_push_hooks = _autograd._push_saved_tensors_default_hooks
_plain_disable = _autograd._saved_tensors_hooks_disable
_plain_enable = _autograd._saved_tensors_hooks_enable


class _Aside(threading.local):
    def __init__(self) -> None:
        self.hooks: list[Any] = []


_aside = _Aside()


def _stands_aside(hooks: Any) -> bool:
    return bool(getattr(getattr(hooks[0], "__self__", None), "stands_aside", False))


def _disable(error_message: str, fail_if_non_empty: bool = True) -> None:
    if fail_if_non_empty:
        while (top := _top_hooks(True)) is not None and _stands_aside(top):
            _pop_hooks()
            _aside.hooks.append(top)
    _plain_disable(error_message, fail_if_non_empty)


def _enable() -> None:
    _plain_enable()
    while _aside.hooks:
        hooks = _aside.hooks.pop()
        if _stands_aside(hooks):  # not closed in the meantime
            _push_hooks(*hooks)


def let_transforms_in() -> None:
    """Put the two functions in place, once."""
    _autograd._saved_tensors_hooks_disable = _disable  # type: ignore[assignment]
    _autograd._saved_tensors_hooks_enable = _enable
