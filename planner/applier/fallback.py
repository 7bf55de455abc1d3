"""The fallback runtime: torch's own `checkpoint(use_reentrant=False)` on one unit, by hooks.

For units that replay cannot serve and for which running the forward again was shown to be right.
The limits of that mechanism hold here (module code, hooks and side effects run twice), which is why
a plan uses it only after a probe, and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import _checkpoint_without_reentrant_generator


class _Thread(threading.local):
    """Checkpointed calls under way on this thread, and modules that are running again."""

    def __init__(self) -> None:
        self.running: list[tuple[nn.Module, Any]] = []
        self.again: list[nn.Module] = []


_thread = _Thread()


class CheckpointEnterGate:
    """Forward pre-hook of a checkpointed unit."""

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Begin to checkpoint the call, unless it is the one that runs again."""
        if (
            torch.compiler.is_compiling()
            or not torch.is_grad_enabled()
            or torch._C._are_functorch_transforms_active()
            or any(module is other for other in _thread.again)
        ):
            return

        def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
            return nullcontext(), _running_again(module)

        call = _checkpoint_without_reentrant_generator(
            module, True, contexts, "default", False, True, *args, **kwargs
        )
        next(call)
        _thread.running.append((module, call))


class CheckpointExitGate:
    """Forward hook of a checkpointed unit, called on errors too."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """End the checkpointed call."""
        running = _thread.running
        if not torch.compiler.is_compiling() and running and running[-1][0] is module:
            next(running.pop()[1], None)


@contextmanager
def _running_again(module: nn.Module) -> Iterator[None]:
    _thread.again.append(module)
    try:
        yield
    finally:
        _thread.again.pop()


def install_checkpoint(module: nn.Module) -> list[Any]:
    """Hook one unit; returns the removable hook handles."""
    return [
        module.register_forward_pre_hook(CheckpointEnterGate(), with_kwargs=True),
        module.register_forward_hook(CheckpointExitGate(), prepend=True, always_call=True),
    ]
