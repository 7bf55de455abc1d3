"""Notices when a step runs backward, and can leave it out. Used while a step is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class ForwardOver(BaseException):
    """Raised to leave a step whose last backward must not run."""


@contextmanager
def watching_backward(ask: Callable[[bool], bool]) -> Iterator[None]:
    """Call `ask` before each backward of this thread; it runs only when that returns True.

    `ask` gets whether the backward accumulates into `.grad` (rather than returns gradients,
    which cannot be left out).
    """
    engine: Any = torch.autograd
    run = engine._engine_run_backward
    thread = threading.get_ident()

    def watched(*args: object, **kwargs: object) -> Any:
        if threading.get_ident() == thread and not ask(bool(kwargs.get("accumulate_grad"))):
            return ()
        return run(*args, **kwargs)

    engine._engine_run_backward = watched
    try:
        yield
    finally:
        engine._engine_run_backward = run
