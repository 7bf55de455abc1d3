"""What a step's Python asked about the content of tensors, and the answers it got.

Stand-ins have no content, and some code takes another way when it sees that it is given stand-ins
(`is_tracing` of transformers builds the attention mask that it would otherwise do without). A
forward that ran for real knows the answers; a fake step that is given them, in order, takes the
way of the real one. Used by `planner.profiler.forwards` and `planner.estimate.fake_profile`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from planner.replay.transparent_mode import TransparentMode

_aten = torch.ops.aten
_QUESTIONS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}


class _Asking(TransparentMode):
    """Looks at every question; all else passes."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one op, or answer it."""
        if func in _QUESTIONS:
            return self.answer(lambda: func(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    def answer(self, ask: Callable[[], object]) -> Any:
        """Return the answer to a question; `ask` asks the tensor."""
        raise NotImplementedError


class Listening(_Asking):
    """Writes down the answers of a step that runs for real."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def answer(self, ask: Callable[[], object]) -> Any:
        """Ask, and note what was said."""
        self.answers.append(ask())
        return self.answers[-1]


class _Answering(_Asking):
    """Gives answers in order; what is asked beyond them the tensor must know itself."""

    def __init__(self, answers: Iterable[object]) -> None:
        super().__init__()
        self.left = deque(answers)

    def answer(self, ask: Callable[[], object]) -> Any:
        """Tell the next answer."""
        return self.left.popleft() if self.left else ask()


class _Hidden(type):
    """Torch itself still sees what is fake, as its shape formulas must; nobody else does."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return _torch_asks() and isinstance(instance, FakeTensor)

    def __subclasscheck__(cls, kind: type) -> bool:
        return _torch_asks() and issubclass(kind, FakeTensor)


class _HiddenFakes(metaclass=_Hidden):
    """Stands for `FakeTensor` under its public name."""


def _torch_asks() -> bool:
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.partition(".")[0] == "torch"


@contextmanager
def answering(answers: Iterable[object] | None) -> Iterator[None]:
    """Let a fake step look real to its own code, and give it the answers; nothing for None."""
    if answers is None:
        yield
        return
    public: Any = torch._subclasses
    kind = public.FakeTensor
    public.FakeTensor = _HiddenFakes
    try:
        with _Answering(answers):
            yield
    finally:
        public.FakeTensor = kind
