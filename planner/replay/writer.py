"""The slow half of a tape: writes down every op and pack of a run, completely.

FATES ARE SAFE    a tensor is given up only when every op that leads to it, back to held values,
                  is on the tape; anything else autograd keeps, as without a plan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from planner.replay.collectives import is_collective, written_by_collective
from planner.replay.digest import CheckedHandle, digest
from planner.replay.flow import PLAIN, Arg, Flow, Key, copy_storage, on_storage
from planner.replay.launches import LAUNCH, watch_launches
from planner.replay.program import Pack, Program, compile_program
from planner.replay.recipe import Namer, Recipe
from planner.replay.record import (
    OpRecord,
    args_of,
    blank_record,
    finish_record,
    hidden_positions,
    on_tape,
    tensors_in,
    write_record,
    written_tensors,
)
from planner.replay.state import Handle, SegmentState
from planner.replay.statistics import about_to_change
from planner.replay.streams import same_device_other_stream, stream_now
from planner.replay.surroundings import choices
from planner.replay.traits import Random, Traits, generator_of, traits_of

passthrough: set[int] = set()
"""Ids of op overloads that a tape ignores."""


class TapeWriter(TorchDispatchMode):
    """Base of `Tape`: the state of a run, and recording."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.flow = Flow()
        self.state = SegmentState(recipe.name, recipe.replayed)
        self.kept: dict[Key, tuple[torch.Tensor, int]] = {}  # tensor, version
        self.copies: dict[Key, torch.Tensor] = {}
        self.originals: dict[Key, tuple[Arg, torch.Tensor]] = {}  # for the audit
        self.records: list[OpRecord] = []
        self.packs: list[Pack] = []
        self.replayable: set[Key] = set()
        self.wished: set[Key] = set()
        self.lost: set[Key] = set()
        self.namer: Namer | None = None
        self.stream = stream_now()

    def begin_recording(self, records: list[OpRecord], packs: list[Pack]) -> None:
        """Start recording, after a followed prefix (empty for a first run)."""
        watch_launches()
        self.records, self.packs = records, packs
        if self.recipe.address is not None:
            self.namer = self.recipe.address()
        if records or packs:
            self._rebuild_flow()

    # -- ops ----------------------------------------------------------------------------------

    @staticmethod
    def keeps(traits: Traits, types: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether what this call makes must stay: a replay would not make the same."""
        return (
            traits.opaque
            or bool(types)
            or not all_on_tape(args, kwargs)
            or (
                traits.changes_argument is not None
                and len(args) > traits.changes_argument
                and args[traits.changes_argument] is not None
            )
        )

    def record(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op and write it down."""
        traits = traits_of(func)
        if traits.passthrough:
            passthrough.add(id(func))
            return func(*args, **kwargs)
        aside = same_device_other_stream(self.stream)
        if aside or self.keeps(traits, types, args, kwargs):
            return self._record_opaque(func, args, kwargs, aside)
        record, written = write_record(self.flow, func, traits, args, kwargs)
        now = choices()
        record.choices = now if now != self.state.surroundings.choices else None
        for tensor in written:
            self._copy_before_write(tensor)
        self.before_hidden_writes(record, args)
        if record.random:
            generator = _generator_now(record, args, kwargs)
            self.state.rng[len(self.records)] = generator.get_state()
        out = func(*args, **kwargs)
        finish_record(self.flow, record, traits, written, args, out)
        self._note(record, args, kwargs, out)
        if traits.unversioned:
            torch.autograd.graph.increment_version(written)
        return out

    def _note(self, record: OpRecord, args: Any, kwargs: Any, out: Any) -> None:
        """Add a finished record: can its results be replayed, does the plan keep some."""
        self._judge(record)
        if self.namer is not None:
            record.address = self.namer(str(record.func), "")
        keeps = self.recipe.keeps
        if keeps is not None and record.address:
            made = (*record.makes, *(new for _, new in record.writes))
            record.keep = tuple(k for i, k in enumerate(made) if keeps(record.address, i))
            self.wished.update(record.keep)
        self.records.append(record)
        if record.keep:
            self.flow.forget_shapes(new for _, new in record.writes)
            self.keep(record, args, kwargs, out)

    def _judge(self, record: OpRecord) -> None:
        if all(key in self.replayable or self._outside(key) for key in record.reads):
            self.replayable.update(record.makes)
            self.replayable.update(new for _, new in record.writes)

    def _outside(self, key: Key) -> bool:
        return key in self.flow.outside and key not in self.lost

    def _record_opaque(self, func: Any, args: Any, kwargs: Any, aside: bool = False) -> Any:
        """Run an op that cannot be replayed; what it writes or makes comes from outside."""
        traits = traits_of(func)
        record = blank_record(self.flow, func)
        record.opaque, record.aside = True, aside
        record.hidden = hidden_positions(traits, args)
        self.before_hidden_writes(record, args)
        tensors = [t for t in tensors_in((args, kwargs)) if on_tape(t)]
        told = traits.tells_writes or is_collective(func)
        written = [*written_tensors(traits, args, kwargs), *(args[at] for at in record.hidden)]
        late = [*written_by_collective(func, args, kwargs), *(written if told else ())]
        record.overwrites = self._before_late_writes([t for t in late if on_tape(t)])
        # On the CPU the next read looks at the content by itself, and needs no copy.
        before = [
            None if told or t.device.type == "cpu" else t.untyped_storage().clone() for t in tensors
        ]
        out = func(*args, **kwargs)
        declared = {id(t) for t in (*late, *written)}
        for tensor, old in zip(tensors, before, strict=True):
            changed = old is not None and not _same_bytes(tensor.untyped_storage(), old)
            if changed or id(tensor) in declared:
                self.flow.wrote_unseen(tensor)
        if self.namer is not None:
            record.address = self.namer(str(func), "")
        slots = (self.flow.known.get(t.untyped_storage()._cdata) for t in tensors)
        record.touched = tuple(slot for slot in slots if slot is not None)
        self.records.append(record)
        return out

    def _before_late_writes(self, tensors: list[torch.Tensor]) -> tuple[Key, ...]:
        """What an op that stays writes: copied if from outside, else as autograd has it."""
        flow = self.flow
        slots = [(flow.known.get(t.untyped_storage()._cdata), t) for t in tensors]
        written = {(slot, flow.version[slot]): t for slot, t in slots if slot is not None}
        for key, tensor in written.items():
            self._copy_before_write(tensor)
            self._save_after_all(key, tensor)
        return tuple(written)

    def _save_after_all(self, key: Key, tensor: torch.Tensor) -> None:
        """What autograd saved is written after it: give it back (WRITES ARRIVE LATER)."""
        for number, pack in enumerate(self.packs):
            if pack.dropped and pack.arg.key == key:
                self.packs[number] = pack._replace(dropped=False, stays=True)
                self.originals.pop(key, None)
                if pack.arg.direct or key not in self.state.memo:
                    self.state.hold(key, on_storage(tensor.untyped_storage(), pack.arg))

    def record_launch(self) -> None:
        """Write down that a kernel out of sight ran: all that is known may have been written."""
        record = blank_record(self.flow, LAUNCH)
        record.opaque = True
        self.flow.blank.update(range(record.slots))
        self.records.append(record)

    # -- packs --------------------------------------------------------------------------------

    def record_pack(self, tensor: torch.Tensor) -> Any:
        """Decide the fate of a tensor that autograd saves, and write it down."""
        if not on_tape(tensor):
            return kept(tensor)
        slots = len(self.flow.base)
        arg = self.flow.read(tensor)
        dropped = (
            not self.recipe.keep_all
            and arg.key in self.replayable
            and arg.key not in self.wished
            and not self.flow.external[arg.slot]
        )
        stays = not dropped and not arg.first
        self.packs.append(Pack(len(self.records), arg, dropped, slots, stays))
        return self.give_up(arg, tensor) if dropped else kept(tensor)

    def give_up(self, arg: Arg, tensor: torch.Tensor) -> Handle:
        """Return what stands for a tensor in autograd's graph."""
        if self.recipe.audits:
            self.originals[arg.key] = (arg, tensor)
        left, key = self.state.left, (arg[0], arg[1])
        left[key] = left.get(key, 0) + 1
        if self.recipe.digests:
            return CheckedHandle(self.state, arg, key, digest(tensor), self.recipe)
        return Handle(self.state, arg, key)

    # -- values that stay ---------------------------------------------------------------------

    def _copy_before_write(self, tensor: torch.Tensor) -> None:
        slot = self.flow.known[tensor.untyped_storage()._cdata]
        key = (slot, self.flow.version[slot])
        if key in self.flow.outside and any(key in earlier.reads for earlier in self.records):
            self.copy_outside((key,))

    def before_hidden_writes(self, record: OpRecord, args: tuple[Any, ...]) -> None:
        """Save the statistics that earlier reads, here or in other runs, will need again."""
        for position in record.hidden:
            about_to_change(args[position])
            slot = self.flow.known.get(args[position].untyped_storage()._cdata)
            self.copy_outside(tuple(key for key in self.flow.outside if key[0] == slot))

    def copy_outside(self, keys: tuple[Key, ...]) -> None:
        """Copy on write: an outside value that a replay may read is about to be overwritten."""
        for key in keys:
            if key not in self.copies:
                self.copies[key] = copy_storage(self.flow.outside[key][0])

    def keep(self, record: OpRecord, args: Any, kwargs: Any, out: Any) -> None:
        """Hold the values of an op that the plan keeps, as sources."""
        made = list(tensors_in(out))
        for key in record.keep:
            if key in record.makes:
                self.kept[key] = (made[record.outs.index(key[0])], 0)
            else:  # written in place; the counter moves once this op has returned
                for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
                    if self.flow.known[tensor.untyped_storage()._cdata] == key[0]:
                        self.kept[key] = (tensor, tensor._version + 1)

    # -- after a followed prefix --------------------------------------------------------------

    def _rebuild_flow(self) -> None:
        """Bring the slow bookkeeping up to where following stopped."""
        flow = self.flow
        count = len(flow.base)
        flow.bumps = [0] * count
        flow.version = [0] * count
        strangers = {slot for slot, _ in flow.outside}
        flow.external = [slot in strangers for slot in range(count)]
        for pack in self.packs:
            self._catch_up(pack.arg)
        for record in self.records:
            if record.func is LAUNCH:
                flow.blank.update(range(record.slots))
            elif record.opaque:
                flow.blank.update(record.touched)
            elif traits_of(record.func).blank:
                flow.blank.update(slot for slot, _ in record.makes)
            for arg in args_of(record):
                self._catch_up(arg)
            for _, new in record.writes:
                flow.blank.discard(new[0])
                flow.version[new[0]] = new[1]
                flow.bumps[new[0]] += 1
            gone = (*record.overwrites, *(old for old, _ in record.writes))
            self.lost.update(k for k in gone if k in flow.outside and k not in self.copies)
            self._judge(record)
            self.wished.update(record.keep)
            if self.namer is not None and record.address:
                self.namer(str(record.func), record.address)
        # Nobody looked whether what the followed part made was written unseen since.
        made = (key for r in self.records if r.device.type == "cpu" for key in r.makes)
        flow.blank.update(slot for slot, _ in made)
        for slot, storage in flow.storages.items():
            flow.contents.seal(slot, storage)

    def _catch_up(self, arg: Arg) -> None:
        flow, slot = self.flow, arg.slot
        flow.version[slot] = max(flow.version[slot], arg.version)
        flow.bumps[slot] = max(flow.bumps[slot], arg.counter)

    # -- the result ---------------------------------------------------------------------------

    def compile(self) -> Program:
        """Turn what was recorded into a program."""
        version, external = self.flow.version, self.flow.external
        late = {key for r in self.records for key in r.overwrites}
        held = {key for key in self.kept if key[1] == version[key[0]]} - late
        held.update(key for r in self.records for _, key in r.writes if external[key[0]])
        cuts = tuple(
            (number, depth)
            for number, record in enumerate(self.records)
            if (depth := self.recipe.cut_depths.get(record.address, 0))
        )
        return compile_program(self.records, self.packs, frozenset(held), cuts)


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias without a graph, with the same version counter.

    A node that held its own output with the graph would keep itself alive for good.
    """
    if tensor.grad_fn is None:
        return tensor
    if type(tensor) not in PLAIN:  # a subclass has a dispatch of its own
        with _disable_current_modes():
            return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def kept(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return what a tensor that stays is packed as: an alias, and its version now."""
    return without_graph(tensor), tensor._version


def all_on_tape(args: Any, kwargs: Any) -> bool:
    """Whether all tensors among an op's arguments are `on_tape`."""
    return all(on_tape(t) for t in tensors_in((args, kwargs)))


def generator_used(record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> Random:
    """Return the generator from which a recorded op draws in this call."""
    where = record.generator
    if where is None:
        return generator_of(record.device)
    found: torch.Generator = args[where] if isinstance(where, int) else kwargs[where]
    return found


def _generator_now(record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Random:
    """The same before the op has run, when its output's device is not known yet."""
    if record.generator is None:
        tensor = next(iter(tensors_in((args, kwargs))), None)
        device = kwargs.get("device") or (tensor.device if tensor is not None else "cpu")
        record.device = torch.device(device)
    return generator_used(record, args, kwargs)


def _same_bytes(storage: torch.UntypedStorage, old: torch.UntypedStorage) -> bool:
    if storage.nbytes() != old.nbytes():
        return False
    a = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    b = torch.empty(0, dtype=torch.uint8, device=old.device).set_(old)
    return torch.equal(a, b)
