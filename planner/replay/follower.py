"""Compares a run with a recorded one, op by op, on the hot path.

An op is the same when its overload, its constants and the values that it reads, through the same
views, are the same. Numbers that changed are taken over for this run (`x * self.alpha`); any other
difference ends the following.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from planner.replay.content import sample
from planner.replay.draws import generator_used
from planner.replay.flow import PLAIN, Arg, bits_of
from planner.replay.launches import LAUNCH
from planner.replay.matching import (
    COMPARED,
    NUMBERS,
    number,
    same_bits,
    same_constant,
    same_keywords,
    same_tensor,
    same_view,
)
from planner.replay.program import Pack, Program
from planner.replay.record import Call, OpRecord, written_tensors
from planner.replay.recorder import keeps_results
from planner.replay.run import SegmentRun, kept
from planner.replay.traits import traits_of
from planner.replay.trees import tensors_in

DIFFERS: Final = object()
"""What `Follower.run_op` and `Follower.pack` return when the run leaves the recorded path."""


class Follower:
    """Follows a recorded program.

    Attributes:
        program: the recorded run that is followed.
        at: number of the op that comes next.
        packed: number of the pack that comes next.
        known, base: the flow's own collections (slots by address, version bases).
    """

    __slots__ = ("_pins", "_run", "_tried", "at", "base", "known", "packed", "program")

    def __init__(self, run: SegmentRun, program: Program) -> None:
        self._run = run
        self.program = program
        self.at = 0
        self.packed = 0
        flow = run.flow
        self.known, self.base, self._pins = flow.known, flow.base, flow.pins
        self._tried: list[Program] = []

    @property
    def records(self) -> tuple[OpRecord, ...]:
        """The records of the ops that ran so far."""
        return self.program.records[: self.at]

    @property
    def packs(self) -> tuple[Pack, ...]:
        """What was packed so far."""
        return self.program.packs[: self.packed]

    @property
    def complete(self) -> bool:
        """Whether the whole program was followed."""
        return self.at == len(self.program.records) and self.packed == len(self.program.packs)

    # -- ops ----------------------------------------------------------------------------------

    def run_op(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run one op if it is the recorded one, and return its result, else `DIFFERS`."""
        while True:
            path, at = self.program.path, self.at
            if at < len(path):
                record, busy = path[at]
                if (
                    record.func is func
                    and len(self.base) == record.slots  # else fewer tensors were packed before
                    and self._same(record, types, args, kwargs)
                ):
                    if busy:
                        return self._run_busy(record, args, kwargs)
                    out = record.call(*args, **kwargs) if kwargs else record.call(*args)
                    self.at = at + 1
                    pin: Any = out.untyped_storage()._weak_ref()
                    self._pins.append(pin)
                    self.known[pin] = record.outs[0]
                    self.base.append(0)
                    return out
                self._run.flow.roll_back(record.slots)
            if not self._switch(func):
                return DIFFERS

    def launched(self) -> bool:
        """Whether a launch of a kernel without an op was recorded here."""
        path = self.program.path
        if self.at < len(path) and path[self.at].record.func is LAUNCH:
            self.at += 1
            return True
        return False

    def _run_busy(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an op that needs more than its one result entered."""
        run, program, at = self._run, self.program, self.at
        if at in program.copied:
            run.copy_outside(program.copied[at])
        if at in program.draws:
            state = generator_used(record, args, kwargs).get_state()
            run.state.step_values.generator_states[at] = state
        if record.hidden:
            run.before_hidden_writes(record.hidden, args)
        out = record.call(*args, **kwargs) if kwargs else record.call(*args)
        self.at = at + 1
        if record.makes:
            self._enter(record, out)
        if record.outside_writes:
            self._note_outside_writes(record, args, kwargs)
        if record.keep:
            run.keep(record, args, kwargs, out)
        if record.writes and traits_of(record.func).unversioned:
            written = written_tensors(traits_of(record.func), args, kwargs or {})
            torch.autograd.graph.increment_version(written)
        return out

    def _enter(self, record: OpRecord, out: Any) -> None:
        flat = (out,) if type(out) is torch.Tensor else tensors_in(out)
        for slot, tensor in zip(record.outs, flat, strict=True):
            if slot >= 0:
                pin: Any = tensor.untyped_storage()._weak_ref()
                self._pins.append(pin)
                self.known[pin] = slot
                self.base.append(0)

    def _note_outside_writes(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> None:
        for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
            slot = self.known[tensor.untyped_storage()._cdata]
            for key in record.outside_writes:
                if key[0] == slot:  # the counter moves once this op has returned
                    self._run.flow.outside[key] = (tensor, tensor._version + 1)

    # -- comparing ----------------------------------------------------------------------------

    def _same(self, record: OpRecord, types: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether this op is the recorded one; enters what comes from outside."""
        if types or record.opaque:
            return record.opaque and (
                record.aside
                or keeps_results(
                    self._run.recipe.rules, traits_of(record.func), types, args, kwargs
                )
            )
        try:
            return self._same_op(record, args, kwargs)
        except (AttributeError, RuntimeError, NotImplementedError):
            return False  # no tensor, or one without storage or version

    def _same_op(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> bool:
        if record.relabelled and not _same_meaning(record, args, kwargs):
            return False
        expected = record.args
        if len(expected) != len(args):
            return False
        changed = False
        known: Any = self.known
        base = self.base
        for wanted, got in zip(expected, args, strict=True):
            kind = type(wanted)
            if kind is Arg:
                slot, _, size, stride, offset, dtype, counter, first, _, _, _ = wanted
                found = known.get(got.untyped_storage()._cdata)
                if first:
                    if not self.same_outside(wanted, got, found):
                        return False
                elif (
                    found != slot
                    or got.size() != size
                    or got.stride() != stride
                    or got.storage_offset() != offset
                    or got._version - base[slot] != counter
                    or got.dtype is not dtype
                ):
                    return False
            elif wanted is not got and not (
                kind is type(got)
                and kind in COMPARED
                and wanted == got
                and (wanted or kind is not float)  # zeros have signs
            ):
                if same_constant(self, wanted, got):
                    continue
                if kind is not type(got) or kind not in NUMBERS:
                    return False
                changed = True
        if changed or kwargs or record.kwargs:
            return self._same_numbers(record, args, kwargs or {}, changed)
        return True

    def _same_numbers(
        self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any], changed: bool
    ) -> bool:
        """Compare keywords, too; numbers that changed are taken from this step."""
        same = same_keywords(self, record.kwargs, kwargs)
        if same is not None and (changed or not same):
            self._take_numbers(record, args, kwargs)
        return same is not None

    def same_outside(self, wanted: Arg, got: torch.Tensor, slot: int | None) -> bool:
        """Compare the first sight of a value from outside, and enter it."""
        if not same_view(wanted, got):
            return False
        flow = self._run.flow
        if wanted.version == 0:
            if slot is not None:
                return False
            pin: Any = got.untyped_storage()._weak_ref()
            self._pins.append(pin)
            self.known[pin] = wanted.slot
            self.base.append(got._version)
        elif slot != wanted.slot or got._version - self.base[slot] != wanted.counter:
            return False
        key = (wanted.slot, wanted.version)
        flow.outside[key] = (got, got._version)
        flow.storages[wanted.slot] = got.untyped_storage()
        if key in self.program.source_uses:
            self._run.samples[key] = sample(got, whole=False)
        return True

    def _take_numbers(
        self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Numbers that change from step to step (`x * self.alpha`) are taken from this step."""
        self._run.state.step_values.calls[self.at] = Call(
            record.func,
            tuple(number(w, g) for w, g in zip(record.args, args, strict=True)),
            tuple((name, number(w, kwargs[name])) for name, w in record.kwargs),
        )

    # -- what autograd packs ------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what stands for a tensor that autograd packs as recorded, else `DIFFERS`."""
        packs, packed = self.program.packs, self.packed
        if packed < len(packs):
            at, arg, dropped, slots, stays = packs[packed]
            if at == self.at:
                if stays or (len(self.base) == slots and self._same_pack(arg, tensor)):
                    self.packed = packed + 1
                    return self._run.drop(arg, tensor) if dropped else kept(tensor)
                self._run.flow.roll_back(slots)
        return DIFFERS

    def _same_pack(self, wanted: Arg, tensor: torch.Tensor) -> bool:
        if type(tensor) not in PLAIN:
            return False
        try:
            return same_tensor(self, wanted, tensor) and bits_of(tensor) == wanted.bits
        except (RuntimeError, NotImplementedError):
            return False

    # -- other variants -----------------------------------------------------------------------

    def _switch(self, func: Any) -> bool:
        """Go on with another recorded variant that shares the prefix and has this op next."""
        self._tried.append(self.program)
        for other in self._run.recipe.programs:
            if self._continues(other, func):
                self.program = other
                return True
        return False

    def _continues(self, other: Program, func: Any) -> bool:
        at, packed, program = self.at, self.packed, self.program
        states = self._run.state.step_values.generator_states
        return (
            not any(other is tried for tried in self._tried)
            and len(other.records) > at
            and len(other.packs) >= packed
            and other.records[at].func is func
            and (at == 0 or other.records[at - 1] is program.records[at - 1])
            and (packed == 0 or other.packs[packed - 1] is program.packs[packed - 1])
            and all(k in program.copied for k in other.copied if k < at)
            and all(k in states for k in other.draws if k < at)
        )


def _same_meaning(record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> bool:
    return same_bits(record.args, args) and same_bits(
        tuple(a for _, a in record.kwargs), tuple((kwargs or {}).values())
    )
