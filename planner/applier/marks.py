"""Notices that a call is over although no hook said so.

Modules run their `always_call` hooks for every `Exception`, but not for a KeyboardInterrupt or a
SystemExit. A mark is put among the local variables of the call's frame; when the frame goes, with
whatever exception and its traceback, so does the mark, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import nn

_CALL = nn.Module._call_impl.__code__


class Mark:
    """Calls `gone` once nothing holds it any more."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone()


def mark_running_call(gone: Callable[[], None]) -> None:
    """Call `gone` when the innermost module call on the stack is over, however it ends."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None:
        frame.f_locals["(planner)"] = Mark(gone)


def calls_on_stack(module: nn.Module) -> int:
    """Return how many calls of this very module are on the stack."""
    count = 0
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL and frame.f_locals["self"] is module:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count
