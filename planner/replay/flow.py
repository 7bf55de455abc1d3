"""Which value is this tensor? Values are told apart by storage and version; views are geometry.

`Flow` is the slow, complete bookkeeping that the recorder of a profile and a recording tape share.
The rules (named, and referred to by name elsewhere):

PINNED IDENTITY   a storage is known by its address, and a weak reference keeps that address from
                  being given to another storage while the flow is open.
UNSEEN WRITE      a version counter that moved further than the writes seen, or memory whose
                  content changed, means that something wrote out of sight: the content is a new
                  value that comes from outside.
OWN COUNTER       some views (of `unsafe_split`) count versions on their own and lag behind; only
                  a counter that is ahead proves a write.
BLANK MEMORY      memory from `empty` that is read before a write was seen was filled by code that
                  no dispatcher sees; it comes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from planner.errors import ReplayError
from planner.replay.content import Contents

Key = tuple[int, int]
"""A value: (slot, version). Slots number storages in order of first sight."""

PLAIN = (torch.Tensor, torch.nn.Parameter)
_free_weak = torch.UntypedStorage._free_weak_ref


class Arg(NamedTuple):
    """A tensor argument of a recorded op: the value, and the view through which it is read.

    `first` marks the first sight of a value from outside; `counter` is how far the tensor's
    version counter stood above its value at first sight; `direct` tells that the view is the very
    geometry of the tensor that holds the value, so that a replay can pass that tensor as it is.
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
        self.contents = Contents()
        self.gone: set[Key] = set()  # outside values that were overwritten out of sight
        self.outside: dict[Key, tuple[Any, int]] = {}  # tensor, version when read
        self.relabelled = False  # the same bytes were seen under several meanings
        self.storages: dict[int, torch.UntypedStorage] = {}  # of outside values, as read
        self._shapes: dict[Key, tuple[object, ...]] = {}  # geometry of the tensor that holds it

    def read(self, tensor: torch.Tensor) -> Arg:
        """Return the value that a plain strided tensor holds now; a stranger comes from outside."""
        address = tensor.untyped_storage()._cdata
        slot = self.known.get(address)
        first = False
        if slot is None:
            slot = self._add(address, tensor, external=True)
            first = True
        elif tensor._version > self.base[slot] + self.bumps[slot]:  # UNSEEN WRITE
            self.bumps[slot] = tensor._version - self.base[slot]
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
        """Which of these values from outside were overwritten out of sight since they were read."""
        return {key for key in keys if key in self.outside and self._is_gone(key)}

    def _is_gone(self, key: Key) -> bool:
        slot, version = key
        latest = slot < len(self.version) and self.version[slot] == version
        return key in self.gone or (latest and self.contents.changed(slot, self.storages[slot]))

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


def copy_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same geometry on a copy of the whole storage."""
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def rebuild(base: torch.Tensor, arg: Arg) -> Any:
    """Return the view `arg` of the storage of `base`, the tensor that holds the value."""
    if arg.direct:
        return base
    if base.dtype is arg.dtype and not base.is_conj() and not base.is_neg():
        return _with_bits(base.as_strided(arg.size, arg.stride, arg.offset), arg.bits)
    return on_storage(base.untyped_storage(), arg)


def on_storage(storage: torch.UntypedStorage, arg: Arg) -> torch.Tensor:
    """Return the view `arg` of a storage."""
    _check_extent(storage, arg)
    view = torch.empty(0, dtype=arg.dtype, device=storage.device)
    return _with_bits(view.set_(storage, arg.offset, arg.size, arg.stride), arg.bits)


def _with_bits(view: torch.Tensor, bits: int) -> torch.Tensor:
    if bits & 1:
        view = torch._conj(view)
    return torch._neg_view(view) if bits & 2 else view


def _check_extent(storage: torch.UntypedStorage, arg: Arg) -> None:
    """`set_` would grow a storage that is too small; refuse instead."""
    last = arg.offset + sum((n - 1) * s for n, s in zip(arg.size, arg.stride, strict=True) if n)
    need = (last + 1) * arg.dtype.itemsize if 0 not in arg.size else 0
    if need > storage.nbytes():
        raise ReplayError(
            "a tensor that a replay made is smaller than the one that backward needs",
            numbers=f"{storage.nbytes()} bytes made, {need} needed",
            cause="a setting that shapes results (the default dtype) changed within a segment",
            fix="exclude the unit from the plan: planner.plan(..., save=[...])",
        )
