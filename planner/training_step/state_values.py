"""The Python values in a snapshot: attributes, containers, closures, iterators. Used by `state`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from planner.training_step.state_iterators import Exchange, may_be_exchanged
from planner.training_step.state_random import random_restorer
from planner.training_step.state_restorers import Restorer, restorers_of
from planner.training_step.state_tensors import quietly
from planner.training_step.state_walk import ATOMS, Held, held_by

_MOST_VALUES = 1_000_000  # of a program that holds more, the nearest are looked at


class FoundTensor(NamedTuple):
    """A tensor that the walk met.

    Attributes:
        tensor: the tensor.
        label: where it is.
        owned: whether a module or an optimizer holds it, whose tensors a step may write.
    """

    tensor: torch.Tensor
    label: str
    owned: bool


class ValueSnapshot:
    """Remembers Python values and puts them back, as the same objects with the same content.

    Breadth first from what is added, along the edges of `state_walk`: attributes and slots, dicts,
    lists, sets, deques, buffers, random generators, functions with their closures, the user's own
    classes and globals. Iterators are exchanged for copies while planning (`state_iterators`).
    Tensors and optimizers found are listed. Not followed: large arrays, and the inside of the
    standard library's, torch's and compiled extensions' own objects.
    """

    def __init__(self) -> None:
        self.tensors: list[FoundTensor] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._seen: dict[int, Any] = {}  # holds the values, so that an id stays theirs
        self._restorers: list[Restorer] = []
        self._places: list[tuple[Held, str]] = []

    def add(self, value: object, label: str) -> None:
        """Remember a value and all that it holds."""
        waiting: deque[tuple[Any, str, bool]] = deque([(value, label, False)])
        while waiting:
            item, where, owned = waiting.popleft()
            if issubclass(type(item), torch.Tensor):
                self.tensors.append(FoundTensor(item, where, owned))
            if id(item) in self._seen or len(self._seen) >= _MOST_VALUES:
                continue
            self._seen[id(item)] = item
            if issubclass(type(item), torch.optim.Optimizer):
                self.optimizers.append(item)
            owned |= issubclass(type(item), (torch.nn.Module, torch.optim.Optimizer))
            self._restorers += restorers_of(item)
            for held in held_by(item):
                self._add_place(held, where)
                if type(held.value) not in ATOMS:
                    waiting.append((held.value, where + held.label, owned))

    def _add_place(self, held: Held, where: str) -> None:
        if held.put is not None and may_be_exchanged(type(held.value)):
            self._places.append((held, where + held.label))

    def knows(self, value: object) -> bool:
        """Return whether a value was met."""
        return id(value) in self._seen

    def exchange_iterators(self) -> None:
        """Put copies in the place of iterators, until `restore`."""
        exchange = Exchange()
        for held, label in self._places:
            new = exchange(held.value, label)
            if held.put is not None and new is not held.value:
                held.put(new)

    def restore(self) -> None:
        """Put everything back."""
        with quietly():
            for restore in self._restorers:
                restore()


@contextmanager
def put_back(values: ValueSnapshot, *others: Restorer) -> Iterator[None]:
    """Run code on copies of iterators; afterwards put all back, also after an error.

    Args:
        values: what was remembered; put back last, with what planner's own work did to it.
        others: called before.
    """
    with ExitStack() as on_exit:  # the last one pushed runs first, and all run whatever happens
        on_exit.callback(values.restore)
        on_exit.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        on_exit.callback(random_restorer())
        for restore in others:
            on_exit.callback(restore)
        values.exchange_iterators()
        yield
