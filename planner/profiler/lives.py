"""When storages are born and die, by op number. Used by the recorder.

The clock is the number of the op that runs, or ran last. A storage seen in an op's result is born
in that op; a storage that dies after op i and before op i + 1 dies at i.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from planner.documents.profile import Category
from planner.training_step.storages import lies_on, storages_of


@dataclass(slots=True)
class Life:
    """One storage's life.

    Attributes:
        bytes: its size.
        birth: the op at which it was first seen; -1 when it was there before the step.
        category: as in a profile.
        argument: an op read it before any op made it.
        death: the op after which it was released; None while it lives.
    """

    bytes: int
    birth: int
    category: Category
    argument: bool = False
    death: int | None = None


class _Watch(weakref.ref["torch.UntypedStorage"]):
    """A weak reference that knows which life it ends."""

    __slots__ = ("address", "number")
    address: int
    number: int


class Lives:
    """All storages of a step, numbered in order of first sight.

    Args:
        device: whose memory counts: a storage elsewhere takes no bytes. By default all memory does.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.now = -1
        self._device = device
        self.lives: list[Life] = []
        self._alive: dict[int, _Watch] = {}
        self.open = True

    def see(
        self, tensor: torch.Tensor, category: Category = "activation", argument: bool = False
    ) -> int:
        """Return the number of a tensor's (first) storage; a new one is born now."""
        number = -1
        counts = lies_on(tensor, self._device)
        for storage in storages_of(tensor):
            number = self._see(storage, storage.nbytes() if counts else 0, category, argument)
        return number

    def see_all(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """See tensors that were there before the step."""
        for tensor in tensors:
            self.see(tensor, category)

    def alive(self) -> list[int]:
        """Return the numbers of the storages that live now."""
        return [watch.number for watch in self._alive.values()]

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a storage that is alive and known, else None."""
        for storage in storages_of(tensor):
            watch = self._alive.get(storage._cdata)
            if watch is not None:
                return watch.number
        return None

    def relabel(self, tensor: torch.Tensor, category: Category) -> None:
        """Give a tensor's storage another category."""
        number = self.number(tensor)
        if number is not None:
            self.lives[number].category = category

    def existing(self) -> list[torch.UntypedStorage]:
        """Return storages that were there before the step, though no one listed them; call last.

        An op read them before any made them, and they outlive the step: data and constants that
        the step's own code holds. They are born before the step from now on.
        """
        found = []
        for watch in self._alive.values():
            life, storage = self.lives[watch.number], watch()
            if storage is not None and life.argument and life.category == "activation":
                life.birth, life.category = -1, "input"
                found.append(storage)
        return found

    def _see(
        self, storage: torch.UntypedStorage, size: int, category: Category, argument: bool
    ) -> int:
        watch = self._alive.get(storage._cdata)
        if watch is not None and watch() is storage:
            life = self.lives[watch.number]
            life.bytes = max(life.bytes, size)
            return watch.number
        number = len(self.lives)
        self.lives.append(Life(size, self.now, category, argument))
        watch = _Watch(storage, self._ended)
        watch.number, watch.address = number, storage._cdata
        self._alive[storage._cdata] = watch
        return number

    def _ended(self, watch: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(watch, _Watch)
        if self.open:
            self.lives[watch.number].death = self.now
        if self._alive.get(watch.address) is watch:
            del self._alive[watch.address]
