"""Writes down every op and pack of a run, completely, and compiles them into a program.

ALL OPS SEEN      a tensor is dropped only when every op that leads to it, back to held values, is
                  on the tape; autograd keeps anything else, as without a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from planner.replay.collectives import is_collective, written_by_collective
from planner.replay.draws import generator_used
from planner.replay.exposure import EXPOSED
from planner.replay.flow import Key
from planner.replay.launches import LAUNCH, watch_launches
from planner.replay.opaque import keeps_results, same_bytes
from planner.replay.program import Pack, Program, compile_program
from planner.replay.recipe import Namer
from planner.replay.record import (
    OpRecord,
    begin_record,
    entry_point,
    finish_record,
    hidden_positions,
    written_tensors,
)
from planner.replay.run import SegmentRun, kept
from planner.replay.streams import same_device_other_stream
from planner.replay.surroundings import switched_choices
from planner.replay.traits import traits_of
from planner.replay.trees import on_tape, tensors_in
from planner.replay.views import on_storage

passthrough: set[int] = set()
"""Ids of op overloads that a tape ignores."""


class Recorder:
    """Records the ops and packs of a run.

    Args:
        run: the run that is recorded.
        records, packs: the prefix that was followed (empty for a first run).
    """

    def __init__(
        self, run: SegmentRun, records: Sequence[OpRecord] = (), packs: Sequence[Pack] = ()
    ) -> None:
        watch_launches()
        self.run = run
        self.records = list(records)
        self.packs = list(packs)
        self._replayable: set[Key] = set()
        self._planned: set[Key] = set()  # values that the plan keeps
        self._lost: set[Key] = set()  # outside values that were overwritten and not copied
        self._resumed = False
        address = run.recipe.address
        self._namer: Namer | None = None if address is None else address()
        if records or packs:
            self._resume()

    # -- ops ----------------------------------------------------------------------------------

    def record(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op and write it down."""
        traits = traits_of(func)
        if traits.passthrough:
            passthrough.add(id(func))
            return func(*args, **kwargs)
        run = self.run
        aside = same_device_other_stream(run.stream)
        if aside or keeps_results(run.recipe.rules, traits, types, args, kwargs):
            return self._record_opaque(func, args, kwargs, aside)
        switched = switched_choices(func, run.state.surroundings.choices)
        begun = begin_record(run.flow, func, traits, args, kwargs, switched)
        for tensor in begun.written:
            self._copy_before_write(tensor)
        run.before_hidden_writes(begun.hidden, args)
        states, at, generator = run.state.step_values.generator_states, len(self.records), None
        if traits.may_draw:
            generator = generator_used(begun, args, kwargs)
            states.before(at, generator)
        out = func(*args, **kwargs)
        drew = generator is not None and (traits.random or states.drew(at, generator))
        record = finish_record(run.flow, begun, args, out, drew=drew)
        if generator is not None:
            if record.random:
                states.after(at, generator)
            else:
                states.forget(at)
        self._note(record, args, kwargs, out)
        if traits.unversioned:
            torch.autograd.graph.increment_version(begun.written)
        return out

    def record_launch(self) -> None:
        """Write down that a kernel without an op ran: it may have written anything."""
        flow = self.run.flow
        self.records.append(OpRecord(LAUNCH, len(flow.base), entry_point(LAUNCH), opaque=True))
        flow.blank.update(range(len(flow.base)))

    def record_exposure(self, tensor: torch.Tensor) -> None:
        """Write down that an array shares a tensor's memory: every later read is a new value."""
        if not on_tape(tensor) or tensor.device.type != "cpu":
            return
        flow = self.run.flow
        slots, slot = len(flow.base), flow.known.get(tensor.untyped_storage()._cdata)
        if slot is not None:
            self._keep_packed((slot, flow.version[slot]), tensor)
        arg = flow.read(tensor)
        flow.exposed.add(arg.slot)
        call, touched = entry_point(EXPOSED), (arg.slot,)
        self.records.append(
            OpRecord(EXPOSED, slots, call, args=(arg,), opaque=True, touched=touched)
        )

    def _note(self, record: OpRecord, args: Any, kwargs: Any, out: Any) -> None:
        """Add a finished record: can its results be replayed, does the plan keep some."""
        self._judge(record)
        address = self._name(record.func)
        keeps = self.run.recipe.keeps
        if address:
            made = (*record.makes, *(new for _, new in record.writes))
            keep = tuple(k for i, k in enumerate(made) if keeps is not None and keeps(address, i))
            record = replace(record, address=address, keep=keep)
            self._planned.update(keep)
        self.records.append(record)
        if record.keep:
            self.run.flow.forget_shapes(new for _, new in record.writes)
            self.run.keep(record, args, kwargs, out)

    def _name(self, func: Any) -> str:
        return "" if self._namer is None else self._namer(str(func), "")

    def _judge(self, record: OpRecord) -> None:
        if all(key in self._replayable or self._outside(key) for key in record.reads):
            self._replayable.update(record.makes)
            self._replayable.update(new for _, new in record.writes)

    def _outside(self, key: Key) -> bool:
        return key in self.run.flow.outside and key not in self._lost

    def _record_opaque(self, func: Any, args: Any, kwargs: Any, aside: bool = False) -> Any:
        """Run an op that cannot be replayed; what it writes or makes comes from outside."""
        traits, flow = traits_of(func), self.run.flow
        slots, hidden = len(flow.base), hidden_positions(traits, args)
        self.run.before_hidden_writes(hidden, args)
        tensors = [t for t in tensors_in((args, kwargs)) if on_tape(t)]
        declared = traits.declares_writes or is_collective(func)
        written = [*written_tensors(traits, args, kwargs), *(args[at] for at in hidden)]
        late = [*written_by_collective(func, args, kwargs), *(written if declared else ())]
        overwrites = self._before_late_writes([t for t in late if on_tape(t)])
        # On the CPU the next read compares the content by itself, and needs no copy.
        before = [
            None if declared or t.device.type == "cpu" else t.untyped_storage().clone()
            for t in tensors
        ]
        out = func(*args, **kwargs)
        certain = {id(t) for t in (*late, *written)}
        for tensor, old in zip(tensors, before, strict=True):
            changed = old is not None and not same_bytes(tensor.untyped_storage(), old)
            if changed or id(tensor) in certain:
                flow.wrote_unseen(tensor)
        touched = (flow.known.get(t.untyped_storage()._cdata) for t in tensors)
        record = OpRecord(
            func=func,
            slots=slots,
            call=entry_point(func),
            hidden=hidden,
            address=self._name(func),
            opaque=True,
            aside=aside,
            touched=tuple(slot for slot in touched if slot is not None),
            overwrites=overwrites,
        )
        self.records.append(record)
        return out

    def _before_late_writes(self, tensors: list[torch.Tensor]) -> tuple[Key, ...]:
        """What an op that stays writes: copied if from outside, else as autograd has it."""
        flow = self.run.flow
        slots = [(flow.known.get(t.untyped_storage()._cdata), t) for t in tensors]
        written = {(slot, flow.version[slot]): t for slot, t in slots if slot is not None}
        for key, tensor in written.items():
            self._copy_before_write(tensor)
            self._keep_packed(key, tensor)
        return tuple(written)

    def _keep_packed(self, key: Key, tensor: torch.Tensor) -> None:
        """Keep, not drop, what autograd packed before this write to it (WRITES ARRIVE LATER)."""
        state = self.run.state
        for number, pack in enumerate(self.packs):
            if pack.dropped and pack.arg.key == key:
                self.packs[number] = pack._replace(dropped=False, stays=True)
                self.run.originals.pop(key, None)
                if pack.arg.direct or key not in state.delivered:
                    state.deliver(key, on_storage(tensor.untyped_storage(), pack.arg))

    # -- packs --------------------------------------------------------------------------------

    def record_pack(self, tensor: torch.Tensor) -> Any:
        """Decide the fate of a tensor that autograd saves, and write it down."""
        if not on_tape(tensor):
            return kept(tensor)
        flow = self.run.flow
        slots = len(flow.base)
        arg = flow.read(tensor)
        dropped = (
            not self.run.recipe.keep_all
            and arg.key in self._replayable
            and arg.key not in self._planned
            and not flow.external[arg.slot]
        )
        stays = not dropped and not arg.first
        self.packs.append(Pack(len(self.records), arg, dropped, slots, stays))
        return self.run.drop(arg, tensor) if dropped else kept(tensor)

    # -- values that stay ---------------------------------------------------------------------

    def _copy_before_write(self, tensor: torch.Tensor) -> None:
        flow = self.run.flow
        slot = flow.known[tensor.untyped_storage()._cdata]
        key = (slot, flow.version[slot])
        if key in flow.outside and any(key in earlier.reads for earlier in self.records):
            self.run.copy_outside((key,))

    # -- after a followed prefix --------------------------------------------------------------

    def _resume(self) -> None:
        """Bring the bookkeeping up to where following stopped."""
        flow = self.run.flow
        flow.restart()
        for pack in self.packs:
            flow.catch_up(pack.arg)
        for record in self.records:
            self._catch_up(record)
        # While following, nothing compared the content of what was made.
        made = {slot for r in self.records if r.device.type == "cpu" for slot, _ in r.makes}
        flow.blank.update(made)
        self._resumed = bool(made)
        for slot, storage in flow.storages.items():
            flow.contents.seal(slot, storage)

    def _catch_up(self, record: OpRecord) -> None:
        flow, copies = self.run.flow, self.run.copies
        if record.func is LAUNCH:
            flow.blank.update(range(record.slots))
        elif record.opaque:
            flow.blank.update(record.touched)
            flow.exposed.update(record.touched if record.func is EXPOSED else ())
        elif traits_of(record.func).blank:
            flow.blank.update(slot for slot, _ in record.makes)
        for arg in record.tensor_args:
            flow.catch_up(arg)
        for _, new in record.writes:
            flow.catch_up_write(new)
        gone = (*record.overwrites, *(old for old, _ in record.writes))
        self._lost.update(k for k in gone if k in flow.outside and k not in copies)
        self._judge(record)
        self._planned.update(record.keep)
        if self._namer is not None and record.address:
            self._namer(str(record.func), record.address)

    # -- the result ---------------------------------------------------------------------------

    def compile(self) -> Program:
        """Turn what was recorded into a program."""
        version, external = self.run.flow.version, self.run.flow.external
        late = {key for r in self.records for key in r.overwrites}
        held = {key for key in self.run.kept if key[1] == version[key[0]]} - late
        held.update(key for r in self.records for _, key in r.writes if external[key[0]])
        depths = self.run.recipe.cut_depths
        cuts = tuple(
            (number, depth)
            for number, record in enumerate(self.records)
            if (depth := depths.get(record.address, 0))
        )
        return compile_program(self.records, self.packs, frozenset(held), cuts, self._resumed)
