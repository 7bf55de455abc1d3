"""Follows a recorded run op by op, and pack by pack, on the hot path.

An op is the recorded one when its overload and its arguments are (see `arguments`). At a difference
the run goes on along another recorded variant with the same beginning, or is recorded from there.
"""

from __future__ import annotations

from operator import is_
from typing import Any, Final

import torch

from planner.errors import ReplayError
from planner.replay.arguments import Arguments
from planner.replay.draws import generator_used
from planner.replay.exposure import EXPOSED
from planner.replay.flow import Arg
from planner.replay.launches import LAUNCH
from planner.replay.program import Pack, Program
from planner.replay.record import OpRecord, uninitialized_like, written_tensors
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
    """

    __slots__ = (
        "_arguments",
        "_base",
        "_known",
        "_pins",
        "_run",
        "_tried",
        "at",
        "packed",
        "program",
    )

    def __init__(self, run: SegmentRun, program: Program) -> None:
        self._run = run
        self.program = program
        self.at = 0
        self.packed = 0
        self._arguments = Arguments(run, program)
        flow = run.flow
        self._known, self._base, self._pins = flow.known, flow.base, flow.pins
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
                    and len(self._base) == record.slots  # else fewer tensors were packed before
                    and self._arguments.same(record, at, types, args, kwargs)
                ):
                    if busy or self._arguments.resized:
                        return self._run_busy(record, args, kwargs)
                    out = record.call(*args, **kwargs) if kwargs else record.call(*args)
                    self.at = at + 1
                    pin: Any = out.untyped_storage()._weak_ref()
                    self._pins.append(pin)
                    self._known[pin] = record.outs[0]
                    self._base.append(0)
                    return out
                self._arguments.forget(record.slots)
            if not self._switch(func):
                return DIFFERS

    def exposed(self, tensor: torch.Tensor) -> bool:
        """Whether the sharing of this memory with an array was recorded here."""
        path = self.program.path
        if self.at >= len(path):
            return False
        record = path[self.at].record
        if record.func is not EXPOSED or len(self._base) != record.slots:
            return False
        (wanted,) = record.args
        if self._arguments.same_pack(wanted, tensor) is None:
            self._arguments.forget(record.slots)
            return False
        self.at += 1
        return True

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
        states, generator = run.state.step_values.generator_states, None
        if at in program.draws:
            generator = generator_used(record, args, kwargs)
            states.before(at, generator)
        if record.hidden:
            run.before_hidden_writes(record.hidden, args)
        out = record.call(*args, **kwargs) if kwargs else record.call(*args)
        if generator is not None:
            states.after(at, generator)
        self.at = at + 1
        if record.makes:
            self._enter(record, out)
            calls = run.state.step_values.calls
            if at in calls and record.again is not None:  # uninitialized memory
                calls[at] = uninitialized_like(out)
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
                if pin in self._known:
                    raise _aliased(record, tensor)
                self._pins.append(pin)
                self._known[pin] = slot
                self._base.append(0)

    def _note_outside_writes(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> None:
        for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
            slot = self._known[tensor.untyped_storage()._cdata]
            for key in record.outside_writes:
                if key[0] == slot:  # the counter moves once this op has returned
                    self._run.flow.outside[key] = (tensor, tensor._version + 1)

    # -- what autograd packs ------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what stands for a tensor that autograd packs as recorded, else `DIFFERS`."""
        while True:
            packs, packed = self.program.packs, self.packed
            if packed < len(packs) and packs[packed].at == self.at:
                _, arg, dropped, slots, stays = packs[packed]
                found: Arg | None = arg
                if not stays and len(self._base) == slots:
                    found = self._arguments.same_pack(arg, tensor)
                elif not stays:
                    found = None
                if found is not None:
                    self.packed = packed + 1
                    return self._run.drop(found, tensor) if dropped else kept(tensor)
                self._arguments.forget(slots)
            if not self._switch(None):
                return DIFFERS

    # -- other variants -----------------------------------------------------------------------

    def _switch(self, func: Any) -> bool:
        """Go on with another recorded variant that shares the prefix and has this op next.

        Args:
            func: the op; None for a pack, which most ops make before they run.
        """
        self._tried.append(self.program)
        for other in self._run.recipe.programs:
            if self._continues(other, func):
                self.program = self._arguments.program = other
                return True
        return False

    def _continues(self, other: Program, func: Any) -> bool:
        at, packed, program = self.at, self.packed, self.program
        states = self._run.state.step_values.generator_states
        return (
            not any(other is tried for tried in self._tried)
            and len(other.records) >= at
            and len(other.packs) >= packed
            and _comes_next(other, at, packed, func)
            and (at == 0 or other.records[at - 1] is program.records[at - 1])
            and all(map(is_, other.packs[:packed], program.packs[:packed]))
            and all(k in program.copied for k in other.copied if k < at)
            and all(k in states for k in other.draws if k < at)
        )


def _comes_next(program: Program, at: int, packed: int, func: Any) -> bool:
    """Whether a program goes on with a pack, or with an op."""
    packs_now = packed < len(program.packs) and program.packs[packed].at == at
    if func is None or packs_now:
        return func is None and packs_now
    return at < len(program.records) and program.records[at].func is func


def _aliased(record: OpRecord, tensor: torch.Tensor) -> ReplayError:
    return ReplayError(
        f"{record.func} returned a tensor of shape {tuple(tensor.shape)} in memory of its "
        "arguments, and in its own memory when it was recorded",
        cause="an op whose results share memory for some sizes only",
        fix="exclude the unit from the plan: planner.plan(..., save=[...])",
    )
