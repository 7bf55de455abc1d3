"""Marks on the stack: a module call is over although no hook ran.

Modules run their `always_call` hooks for every `Exception`, but not for a KeyboardInterrupt or a
SystemExit. A mark is put among the local variables of the call's frame; when the frame goes, with
whatever exception and its traceback, so does the mark, which then calls back. Where somebody keeps
the traceback, `marks_on_stack` still shows which calls are really under way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count

from torch import nn

_CALL = nn.Module._call_impl.__code__
_PREFIX = "(planner) "
_numbers = count()


class _Mark:
    """Calls `gone` with its number once nothing holds it any more."""

    def __init__(self, number: int, gone: Callable[[int], None]) -> None:
        self._number, self._gone = number, gone

    def __del__(self) -> None:
        self._gone(self._number)


def mark_running_call(gone: Callable[[int], None]) -> int:
    """Call `gone` when the innermost module call on the stack is over; returns its number."""
    number = next(_numbers)
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is not None:
        frame.f_locals[f"{_PREFIX}{number}"] = _Mark(number, gone)
    return number


def marks_on_stack() -> set[int]:
    """Return the numbers of the marked calls that are under way in this thread."""
    found: set[int] = set()
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            names = (name for name in frame.f_locals if name.startswith(_PREFIX))
            found.update(int(name.removeprefix(_PREFIX)) for name in names)
        frame = frame.f_back  # type: ignore[assignment]
    return found
