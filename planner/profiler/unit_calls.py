"""Which module calls are under way: temporary hooks on every unit while a step is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from planner.replay.units import hookable


@dataclass(slots=True)
class Call:
    """One module call; `exit` is filled when it returns."""

    name: str
    call: int
    root_call: int
    kind: str
    parent: int
    enter: int
    exit: int


class UnitCalls:
    """Records calls of a model's units in the order in which they begin.

    Args:
        clock: returns the current position (number of ops so far).
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self.calls: list[Call] = []
        self.stack: list[int] = []
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._root_call = -1

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Hook every unit that can be hooked; all hooks are gone on exit."""
        handles: list[Any] = []
        try:
            for name, module in hookable(model):
                handles.append(module.register_forward_pre_hook(self._enter(name), prepend=True))
                handles.append(module.register_forward_hook(self._exit(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def innermost(self, name: str) -> int:
        """Return the index of the running call of this unit, or of the innermost one, or -1."""
        for index in reversed(self.stack):
            if self.calls[index].name == name:
                return index
        return self.stack[-1] if self.stack else -1

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object) -> None:
            if name == "" and not self.stack:
                self._root_call += 1
                self._counts.clear()
            number = self._counts.get(name, 0)
            self._counts[name] = number + 1
            parent = self.stack[-1] if self.stack else -1
            at = self._clock()
            kind = type(module).__name__
            self.stack.append(len(self.calls))
            self.calls.append(Call(name, number, max(self._root_call, 0), kind, parent, at, at))

        return hook

    def _exit(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, output: object) -> None:
            while self.stack:  # calls above this one were left by an error
                call = self.calls[self.stack.pop()]
                call.exit = self._clock()
                if call.name == name:
                    break

        return hook
