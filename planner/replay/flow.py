"""Identifies values: a value is one version of one storage; a view is geometry on it.

`Flow` is the slow, complete bookkeeping that the recorder of a profile and a recording tape share.
The rules (named, and referred to by name elsewhere):

PINNED IDENTITY   a storage is known by its address, and a weak reference keeps that address from
                  being given to another storage while the flow is open.
UNSEEN WRITE      a version counter that moved further than the writes seen, or memory whose
                  content changed, means that code without an op wrote: the content is a new value
                  that comes from outside.
OWN COUNTER       some views (of `unsafe_split`) count versions on their own and lag behind; only
                  a counter that is ahead proves a write.
BLANK MEMORY      memory from `empty` that is read before a write was seen was filled by code
                  without an op; it comes from outside.
SHARED MEMORY     memory that an array shares may be written between any two reads (see `exposure`);
                  every read of it is a new value that comes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from planner.replay.content import Contents

Key = tuple[int, int]
"""A value: (slot, version). Slots number storages in order of first sight."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
_free_weak = torch.UntypedStorage._free_weak_ref


class Arg(NamedTuple):
    """A tensor argument of a recorded op: the value, and the view through which it is read.

    `first` marks the first sight of a value from outside; `counter` is how far the tensor's
    version counter stood above its value at first sight; with `direct`, the view has the same
    geometry as the tensor that holds the value, so that a replay can pass that tensor as it is.
    """

    slot: int
    version: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    counter: int
    first: bool
    device: torch.device
    bits: int
    direct: bool

    @property
    def key(self) -> Key:
        """The value that is read."""
        return (self.slot, self.version)


class Flow:
    """Storages seen so far, their versions, and where values come from.

    Args:
        hold: keep the tensors of outside values alive while the flow is open (a tape must, a
            recorder that only looks on must not).
    """

    def __init__(self, hold: bool = True) -> None:
        self.hold = hold
        self.known: dict[int, int] = {}
        self.pins: list[int] = []
        self.base: list[int] = []
        self.bumps: list[int] = []
        self.version: list[int] = []
        self.external: list[bool] = []
        self.blank: set[int] = set()
        self.exposed: set[int] = set()  # slots of memory that arrays share
        self.contents = Contents()
        self.gone: set[Key] = set()  # outside values that were overwritten without an op
        self.outside: dict[Key, tuple[Any, int]] = {}  # tensor, version when read
        self.relabelled = False  # the same bytes were seen under several meanings
        self.storages: dict[int, torch.UntypedStorage] = {}  # of outside values, as read
        self._shapes: dict[Key, tuple[object, ...]] = {}  # geometry of the tensor that holds it

    def read(self, tensor: torch.Tensor) -> Arg:
        """Return the value that a plain strided tensor holds now; unknown storages are outside."""
        address = tensor.untyped_storage()._cdata
        slot = self.known.get(address)
        first = False
        if slot is None:
            slot = self._add(address, tensor, external=True)
            first = True
        elif tensor._version > self.base[slot] + self.bumps[slot]:  # UNSEEN WRITE
            self.bumps[slot] = tensor._version - self.base[slot]
            first = self._renew(slot, tensor)
        elif slot in self.exposed:  # SHARED MEMORY
            if self.contents.changed(slot, tensor.untyped_storage()):
                self.gone.add((slot, self.version[slot]))
            first = self._renew(slot, tensor)
        elif slot in self.blank:  # BLANK MEMORY
            first = self._renew(slot, tensor)
        elif self.contents.changed(slot, tensor.untyped_storage()):  # UNSEEN WRITE
            self.gone.add((slot, self.version[slot]))
            first = self._renew(slot, tensor)
        return self._arg(slot, tensor, first)

    def peek_written(self, tensor: torch.Tensor) -> Arg:
        """Like `read`, for an argument that the op overwrites: blank memory stays blank."""
        storage = tensor.untyped_storage()
        slot = self.known.get(storage._cdata)
        if slot is not None and slot in self.blank and not self.contents.changed(slot, storage):
            return self._arg(slot, tensor, False)
        return self.read(tensor)

    def made(self, tensor: torch.Tensor, blank: bool) -> Key | None:
        """Register an op's output; None when its storage was known (the output is an alias)."""
        address = tensor.untyped_storage()._cdata
        if address in self.known:
            return None
        slot = self._add(address, tensor, external=False)
        if blank and tensor.untyped_storage().nbytes():
            self.blank.add(slot)
        self.contents.seal(slot, tensor.untyped_storage())
        self._shapes[(slot, 0)] = _shape(tensor)
        return (slot, 0)

    def wrote(self, tensor: torch.Tensor) -> tuple[Key, Key]:
        """Note a seen in-place write; returns (old value, new value)."""
        slot = self.known[tensor.untyped_storage()._cdata]
        self.blank.discard(slot)
        old = (slot, self.version[slot])
        self.version[slot] += 1
        self.bumps[slot] += 1
        new = (slot, self.version[slot])
        if self.external[slot]:  # the result lives outside anyway
            self._enter(new, tensor, tensor._version + 1)  # the counter moves when the op returns
        elif old in self._shapes:
            self._shapes[new] = self._shapes[old]
        self.contents.seal(slot, tensor.untyped_storage())
        return old, new

    def wrote_unseen(self, tensor: torch.Tensor) -> None:
        """Note that content changed without a version bump; the next read is a new value."""
        slot = self.known.get(tensor.untyped_storage()._cdata)
        if slot is not None:
            self.blank.add(slot)

    def forget_shapes(self, keys: Iterable[Key]) -> None:
        """Note that other views than the first may come to hold these values."""
        for key in keys:
            self._shapes.pop(key, None)

    def overwritten(self, keys: Iterable[Key]) -> set[Key]:
        """Return which of these outside values were overwritten without an op after the read."""
        return {key for key in keys if key in self.outside and self._is_gone(key)}

    def _is_gone(self, key: Key) -> bool:
        slot, version = key
        latest = slot < len(self.version) and self.version[slot] == version
        return key in self.gone or (latest and self.contents.changed(slot, self.storages[slot]))

    def restart(self) -> None:
        """Begin the bookkeeping of versions anew, for the storages that a followed run entered."""
        count = len(self.base)
        self.bumps = [0] * count
        self.version = [0] * count
        external = {slot for slot, _ in self.outside}
        self.external = [slot in external for slot in range(count)]

    def catch_up(self, arg: Arg) -> None:
        """Take a value that a followed run read as the newest of its storage."""
        self.version[arg.slot] = max(self.version[arg.slot], arg.version)
        self.bumps[arg.slot] = max(self.bumps[arg.slot], arg.counter)

    def catch_up_write(self, new: Key) -> None:
        """Take a value that a followed run wrote as the newest of its storage."""
        slot, version = new
        self.blank.discard(slot)
        self.version[slot] = version
        self.bumps[slot] += 1

    def roll_back(self, slots: int) -> None:
        """Forget the storages beyond the first `slots`, seen in a comparison that failed."""
        while len(self.base) > slots:
            slot = len(self.base) - 1
            self.base.pop()
            pin = self.pins.pop()
            self.known.pop(pin, None)
            _free_weak(pin)
            self.outside.pop((slot, 0), None)
            self.storages.pop(slot, None)

    def close(self) -> None:
        """Let go of every pin and every held tensor."""
        for pin in self.pins:
            _free_weak(pin)
        self.pins.clear()
        self.known.clear()
        self.outside.clear()
        self.storages.clear()

    def _add(self, address: int, tensor: torch.Tensor, external: bool) -> int:
        slot = len(self.base)
        self.known[address] = slot
        self.pins.append(pin(tensor))  # PINNED IDENTITY
        self.base.append(tensor._version if external else 0)
        self.bumps.append(0)
        self.version.append(0)
        self.external.append(external)
        if external:
            self._enter((slot, 0), tensor, tensor._version)
            self.contents.seal(slot, tensor.untyped_storage())
        return slot

    def _enter(self, key: Key, tensor: torch.Tensor, version: int) -> None:
        self.outside[key] = (tensor if self.hold else None, version)
        if self.hold:
            self.storages[key[0]] = tensor.untyped_storage()
        self._shapes[key] = _shape(tensor)

    def _renew(self, slot: int, tensor: torch.Tensor) -> bool:
        self.blank.discard(slot)
        self.version[slot] += 1
        self.external[slot] = True
        self._enter((slot, self.version[slot]), tensor, tensor._version)
        self.contents.seal(slot, tensor.untyped_storage())
        return True

    def _arg(self, slot: int, tensor: torch.Tensor, first: bool) -> Arg:
        bits = bits_of(tensor)
        direct = not bits and self._shapes.get((slot, self.version[slot])) == _shape(tensor)
        return Arg(
            slot,
            self.version[slot],
            tuple(tensor.size()),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor._version - self.base[slot],
            first,
            tensor.device,
            bits,
            direct,
        )


def pin(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage and keep it from being given to another one."""
    address: Any = tensor.untyped_storage()._weak_ref()
    return int(address)


def _shape(tensor: torch.Tensor) -> tuple[object, ...]:
    return (
        tensor.size(),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.dtype,
        bits_of(tensor),
    )


def bits_of(tensor: torch.Tensor) -> int:
    """Return 1 for a conjugated view, plus 2 for a negated one."""
    return int(tensor.is_conj()) + 2 * int(tensor.is_neg())
