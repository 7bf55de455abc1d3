"""A torch function mode for what runs between the model's forward and the end of backward.

The model's hooks say when the forward is over, and the rest of the step is the training loop's own
code, in which nothing of ours runs; so a `TorchFunctionMode` stays open until the next hook.

BOTTOM OF THE STACK     the loop may enter and leave modes of its own in the meantime, and leaving
                  takes off the top whatever it is. So ours stands below all others; only that of
                  `torch.set_default_device` insists on the very bottom.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils._device import DeviceContext

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class TailMode(TorchFunctionMode):
    """Hands every torch function that is called to `handler`, which runs it.

    While torch asks a mode it keeps it off the stack and puts it back afterwards, so the mode can
    be closed at any moment but leaves the stack only at `remove`, called from elsewhere.
    """

    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._handler: Handler | None = handler
        self._thread = threading.get_ident()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one function, by the handler until the mode is closed."""
        if torch.compiler.is_compiling() or self._handler is None:  # the compiler traces this, too
            return func(*args, **(kwargs or {}))
        return self._handler(func, args, kwargs or {})

    def open(self) -> None:
        """Put the mode below all others of this thread."""
        above = _take_off(_insists_on_bottom)
        _push_mode(self)
        _put_back(above)

    def close(self) -> None:
        """Stop handling functions."""
        self._handler = None

    def remove(self) -> None:
        """Close the mode and take it off the stack, when called in its own thread."""
        self.close()
        if threading.get_ident() != self._thread:
            return
        if not any(mode is self for mode in _get_current_function_mode_stack()):
            return
        above = _take_off(lambda mode: mode is self)
        _pop_mode()
        _put_back(above)


def _insists_on_bottom(mode: TorchFunctionMode) -> bool:
    """Whether it was entered by its own Python method; `with torch.device(...)` does not."""
    return isinstance(mode, DeviceContext) and hasattr(mode, "old_device")


def _take_off(stop: Callable[[TorchFunctionMode], bool]) -> list[TorchFunctionMode]:
    """Take modes off the top until one for which `stop` holds, which stays; topmost first."""
    taken: list[TorchFunctionMode] = []
    for mode in reversed(_get_current_function_mode_stack()):
        if stop(mode):
            break
        taken.append(_pop_mode())
    return taken


def _put_back(modes: list[TorchFunctionMode]) -> None:
    for mode in reversed(modes):
        _push_mode(mode)


BACKWARDS: tuple[Any, ...] = (torch.Tensor.backward, torch.autograd.backward)
