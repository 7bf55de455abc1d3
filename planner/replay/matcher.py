"""Is this op the recorded one? The comparing half of a tape, on its hot path.

An op is the same when its overload, its constants and the values that it reads, through the same
views, are the same. Numbers that changed are taken over for this run (`x * self.alpha`); anything
else that differs ends the following.
"""

from __future__ import annotations

from math import copysign
from typing import Any

import torch

from planner.replay.content import Watch, watch
from planner.replay.flow import PLAIN, Arg, Key, bits_of
from planner.replay.program import Program
from planner.replay.recipe import Recipe
from planner.replay.record import Many, OpRecord, Skip
from planner.replay.traits import traits_of
from planner.replay.writer import TapeWriter

_NUMBERS = (int, float)
_COMPARED = (int, float, bool, str)


class Matcher(TapeWriter):
    """Compares a run with a recorded one.

    Attributes:
        program: the recorded run that is followed, if any.
        known, base, pins: the flow's own lists (slots by address, version bases, pins).
        at: number of the op that comes next.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.known, self.base, self.pins = self.flow.known, self.flow.base, self.flow.pins
        self.at = 0
        self.program: Program | None = None
        self.seen: dict[Key, Watch | None] = {}  # sources, when they were first read

    def same(self, record: OpRecord, types: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether this op is the recorded one; takes note of what comes from outside."""
        if types or record.opaque:
            return record.opaque and (
                record.aside or self.keeps(traits_of(record.func), types, args, kwargs)
            )
        try:
            return self._same_op(record, args, kwargs)
        except (AttributeError, RuntimeError, NotImplementedError):
            return False  # no tensor, or one without storage or version

    def _same_op(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> bool:
        if record.relabelled and not (
            _same_bits(record.args, args)
            and _same_bits(tuple(a for _, a in record.kwargs), tuple((kwargs or {}).values()))
        ):
            return False
        expected = record.args
        if len(expected) != len(args):
            return False
        odd = False
        known: Any = self.known
        base = self.base
        for wanted, got in zip(expected, args, strict=True):
            kind = type(wanted)
            if kind is Arg:
                slot = known.get(got.untyped_storage()._cdata)
                if wanted[7]:
                    if not self._same_outside(wanted, got, slot):
                        return False
                elif (
                    slot != wanted[0]
                    or got.size() != wanted[2]
                    or got.stride() != wanted[3]
                    or got.storage_offset() != wanted[4]
                    or got._version - base[slot] != wanted[6]
                    or got.dtype is not wanted[5]
                ):
                    return False
            elif wanted is not got and not (
                kind is type(got)
                and kind in _COMPARED
                and wanted == got
                and (wanted or kind is not float)  # zeros have signs
            ):
                if self._same_constant(wanted, got):
                    continue
                if kind is not type(got) or kind not in _NUMBERS:
                    return False
                odd = True
        if kwargs or record.kwargs:
            same = self._same_keywords(record, kwargs or {})
            if same is None:
                return False
            odd |= not same
        if odd:
            self._override(record, args, kwargs or {})
        return True

    def _same_keywords(self, record: OpRecord, kwargs: dict[str, Any]) -> bool | None:
        """True when equal, False when only numbers differ, None when different."""
        if len(record.kwargs) != len(kwargs):
            return None
        same = True
        for (name, wanted), (other, got) in zip(record.kwargs, kwargs.items(), strict=True):
            if name != other:
                return None
            if not self._same_constant(wanted, got):
                if type(wanted) is not type(got) or type(got) not in _NUMBERS:
                    return None
                same = False
        return same

    def _same_constant(self, wanted: Any, got: Any) -> bool:
        if type(wanted) is Arg:
            return isinstance(got, torch.Tensor) and self._same_tensor(wanted, got)
        if isinstance(wanted, Many):
            return (
                isinstance(got, (list, tuple))
                and type(got) is wanted.kind
                and len(got) == len(wanted)
                and all(self._same_constant(w, g) for w, g in zip(wanted, got, strict=True))
            )
        if type(wanted) is Skip:
            return isinstance(got, torch.Tensor)
        if isinstance(got, torch.Tensor):
            return False
        if isinstance(got, torch.Generator):
            return isinstance(wanted, torch.Generator)
        if type(wanted) is list:
            return (
                type(got) is list
                and len(got) == len(wanted)
                and all(self._same_constant(w, g) for w, g in zip(wanted, got, strict=True))
            )
        if type(wanted) is not type(got) or wanted != got:
            return False
        if type(got) is complex:
            return repr(wanted) == repr(got)
        return type(got) is not float or copysign(1.0, wanted) == copysign(1.0, got)

    def _same_tensor(self, wanted: Arg, got: torch.Tensor) -> bool:
        slot: Any = self.known.get(got.untyped_storage()._cdata)
        if wanted[7]:
            return self._same_outside(wanted, got, slot)
        return bool(
            slot == wanted[0]
            and got.size() == wanted[2]
            and got.stride() == wanted[3]
            and got.storage_offset() == wanted[4]
            and got._version - self.base[slot] == wanted[6]
            and got.dtype is wanted[5]
        )

    def _same_outside(self, wanted: Arg, got: torch.Tensor, slot: int | None) -> bool:
        """Compare the first sight of a value from outside, and take note of it."""
        if (
            type(got) not in PLAIN
            or got.size() != wanted.size
            or got.stride() != wanted.stride
            or got.storage_offset() != wanted.offset
            or got.dtype is not wanted.dtype
            or got.device != wanted.device
            or bits_of(got) != wanted.bits
            or got.is_inference()
        ):
            return False
        if wanted.version == 0:
            if slot is not None:
                return False
            pin: Any = got.untyped_storage()._weak_ref()
            self.flow.pins.append(pin)
            self.known[pin] = wanted.slot
            self.base.append(got._version)
        elif slot != wanted.slot or got._version - self.base[slot] != wanted.counter:
            return False
        key = (wanted.slot, wanted.version)
        self.flow.outside[key] = (got, got._version)
        self.flow.storages[wanted.slot] = got.untyped_storage()
        if key in self.program.source_uses:  # type: ignore[union-attr]  # while following
            self.seen[key] = watch(got, whole=False)
        return True

    def _override(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Numbers that change from step to step (`x * self.alpha`) are taken from this step."""
        self.state.overrides[self.at] = (
            tuple(_number(w, g) for w, g in zip(record.args, args, strict=True)),
            tuple((name, _number(w, kwargs[name])) for name, w in record.kwargs),
        )

    def same_pack(self, wanted: Arg, tensor: torch.Tensor) -> bool:
        """Whether autograd packs the recorded tensor."""
        if type(tensor) not in PLAIN:
            return False
        try:
            return self._same_tensor(wanted, tensor) and bits_of(tensor) == wanted.bits
        except (RuntimeError, NotImplementedError):
            return False


def _same_bits(wanted: Any, got: Any) -> bool:
    """Whether tensors are read conjugated or negated as they were."""
    if type(wanted) is Arg:
        return isinstance(got, torch.Tensor) and bits_of(got) == wanted.bits
    if isinstance(wanted, (Many, tuple)) and isinstance(got, (list, tuple)):
        return all(_same_bits(w, g) for w, g in zip(wanted, got, strict=False))
    return True


def _number(recorded: Any, now: Any) -> Any:
    return now if type(recorded) in _NUMBERS and type(now) in _NUMBERS else recorded
