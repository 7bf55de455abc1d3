"""The tape: runs a segment's forward once, follows or records its ops, gives saved tensors up.

The first run of a segment is *recorded*: every op and every pack is written down (slow, complete,
see `writer`). Later runs are *followed*: each op is compared with the recorded one (same overload,
same values through the same views, same constants), which costs a fraction; from the first
difference on the run is recorded again. A followed run holds each outside value until the segment
closes, so that whatever comes after a difference can still be replayed.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.errors import ReplayError
from planner.replay.aside import let_transforms_in
from planner.replay.audit import audit
from planner.replay.content import watch
from planner.replay.digest import CheckedHandle
from planner.replay.flow import Key, on_storage
from planner.replay.launches import LAUNCH
from planner.replay.matcher import Matcher
from planner.replay.program import Program
from planner.replay.recipe import Recipe
from planner.replay.record import OpRecord, args_of, tensors_in, written_tensors
from planner.replay.slicing import slice_segment
from planner.replay.stack import push_hooks, remove_hooks, remove_mode
from planner.replay.state import GIVEN_BACK, OVERWRITTEN, Handle, SegmentState, Source
from planner.replay.statistics import wait_for_backward
from planner.replay.traits import traits_of
from planner.replay.writer import generator_used, kept, passthrough

let_transforms_in()


class Tape(Matcher):
    """One run of one segment, from `open` to `close`."""

    supports_higher_order_operators = True
    stands_aside = False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let compiled code inside a segment run compiled; what it makes comes from outside."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.program = recipe.programs[0] if recipe.programs else None
        self.state.open_tape = self
        self.packed = 0
        self.paused = False
        self.tried: list[Program] = []
        if self.program is None:
            self.begin_recording([], [])

    # -- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Start listening: ops through the dispatch mode, packs through the hooks."""
        push_hooks(self.pack, unpack)
        self.stands_aside = True  # for transforms, see `aside`
        self.__enter__()

    def close(self, learn: bool = True) -> bool:
        """Stop listening; leave behind what the replay needs and nothing else.

        Args:
            learn: remember the program for later runs (not after an error).

        Returns:
            Whether the tape is off the stack of modes; if not, it is handling an op just now, and
            lets all others pass until it is removed.
        """
        self.stands_aside = False
        remove_hooks(self.pack)
        removed = remove_mode(self)
        self.paused = True
        program = self.program
        if program is not None and (
            self.at != len(program.records) or self.packed != len(program.packs)
        ):
            self._diverge(None)
            program = None
        overwritten: set[Key] = set()
        recorded = program is None
        if program is None:
            program = self.compile()
            overwritten = self.flow.overwritten(program.sources) - self.copies.keys()
        if learn and not overwritten:
            self.recipe.learned(program)
        self.state.open_tape = None
        self.state.bind(program)
        if program.drops:
            sources = self.state.sources
            sources.update((key, self._source(key, recorded)) for key in program.sources)
            for key in overwritten:
                if sources[key].version != GIVEN_BACK:
                    sources[key] = Source(sources[key].tensor, OVERWRITTEN, None)
            if program.statistics:
                wait_for_backward(self.state, program)
        if self.originals:
            finding = audit(self.state, program, self.originals)
            if finding is not None:
                self.recipe.findings.append(finding)
        for held in (self.kept, self.copies, self.originals, self.seen):
            held.clear()
        self.flow.close()
        del self.state  # autograd's nodes hold this tape's hooks; they must not hold the sources
        return removed

    def _source(self, key: Key, recorded: bool) -> Source:
        copy = self.copies.get(key)
        if copy is not None:
            return Source(copy, None, None)
        kept = self.kept.get(key)
        if kept is not None:
            tensor, version = kept[0].detach(), kept[1]
            return Source(tensor, version, watch(tensor, whole=recorded))
        tensor, version = self.flow.outside[key]
        storage = self.flow.storages[key[0]]
        if tensor.numel() and not storage.nbytes():
            return Source(tensor.detach(), GIVEN_BACK, None)
        if tensor.untyped_storage()._cdata == storage._cdata:
            tensor = tensor.detach()  # also of a leaf: its `.data` may be replaced later
        else:  # it has been replaced already
            tensor = self._as_read(key, storage)
            version = tensor._version
        return Source(tensor, version, self.seen.get(key) or watch(tensor, whole=recorded))

    def _as_read(self, key: Key, storage: torch.UntypedStorage) -> torch.Tensor:
        program = self.program
        records = program.records if program is not None else self.records
        arg = next(a for r in records for a in args_of(r) if a.key == key)
        return on_storage(storage, arg)

    # -- every op -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Follow or record one op."""
        if id(func) in passthrough or self.paused:
            return func._op(*args, **kwargs) if kwargs else func._op(*args)
        while (program := self.program) is not None:
            at = self.at
            if at < len(program.path):
                record, busy = program.path[at]
                if (
                    record.func is func
                    and len(self.base) == record.slots  # else fewer tensors were packed before
                    and self.same(record, types, args, kwargs)
                ):
                    if busy:
                        return self._follow(program, record, at, args, kwargs)
                    out = record.call(*args, **kwargs) if kwargs else record.call(*args)
                    self.at = at + 1
                    pin: Any = out.untyped_storage()._weak_ref()
                    self.pins.append(pin)
                    self.known[pin] = record.outs[0]
                    self.base.append(0)
                    return out
                self.flow.roll_back(record.slots)
            self._diverge(func)
        return self.record(func, types, args, kwargs or {})

    def _follow(
        self, program: Program, record: OpRecord, at: int, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        if at in program.copied:
            self.copy_outside(program.copied[at])
        if at in program.draws:
            self.state.rng[at] = generator_used(record, args, kwargs).get_state()
        if record.hidden:
            self.before_hidden_writes(record, args)
        out = record.call(*args, **kwargs) if kwargs else record.call(*args)
        self.at = at + 1
        if record.makes:
            outs = record.outs
            flat = (out,) if type(out) is torch.Tensor else tensors_in(out)
            for slot, tensor in zip(outs, flat, strict=True):
                if slot >= 0:
                    pin: Any = tensor.untyped_storage()._weak_ref()
                    self.pins.append(pin)
                    self.known[pin] = slot
                    self.base.append(0)
        if record.outside_writes:
            self._note_outside_writes(record, args, kwargs)
        if record.keep:
            self.keep(record, args, kwargs, out)
        if record.writes and traits_of(record.func).unversioned:
            written = written_tensors(traits_of(record.func), args, kwargs or {})
            torch.autograd.graph.increment_version(written)
        return out

    def kernel_launched(self) -> None:
        """A kernel that no dispatcher sees was launched (see `launches`)."""
        while (program := self.program) is not None:
            if self.at < len(program.path) and program.path[self.at][0].func is LAUNCH:
                self.at += 1
                return
            self._diverge(None)
        self.record_launch()

    def _note_outside_writes(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> None:
        for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
            slot = self.known[tensor.untyped_storage()._cdata]
            for key in record.outside_writes:
                if key[0] == slot:  # the counter moves once this op has returned
                    self.flow.outside[key] = (tensor, tensor._version + 1)

    # -- what autograd packs ------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Any:
        """Decide the fate of a tensor that autograd saves: a handle, or (tensor, version)."""
        if self.paused:
            return kept(tensor)
        while (program := self.program) is not None:
            packed = self.packed
            if packed < len(program.packs):
                at, arg, dropped, slots, stays = program.packs[packed]
                if at == self.at:
                    if stays or (len(self.base) == slots and self.same_pack(arg, tensor)):
                        self.packed = packed + 1
                        return self.give_up(arg, tensor) if dropped else kept(tensor)
                    self.flow.roll_back(slots)
            self._diverge(None)
        return self.record_pack(tensor)

    # -- leaving the recorded path ------------------------------------------------------------

    def _diverge(self, func: Any) -> None:
        """This run differs from the recorded one: follow a sibling, or record from here."""
        program = self.program
        assert program is not None
        self.tried.append(program)
        if func is not None:
            for other in self.recipe.programs:
                if self._continues(program, other, func):
                    self.program = other
                    return
        self.program = None
        self.begin_recording(list(program.records[: self.at]), list(program.packs[: self.packed]))

    def _continues(self, program: Program, other: Program, func: Any) -> bool:
        """Whether `other` shares the followed prefix and goes on with this op."""
        at, packed = self.at, self.packed
        return (
            not any(other is tried for tried in self.tried)
            and len(other.records) > at
            and len(other.packs) >= packed
            and other.records[at].func is func
            and (at == 0 or other.records[at - 1] is program.records[at - 1])
            and (packed == 0 or other.packs[packed - 1] is program.packs[packed - 1])
            and all(k in program.copied for k in other.copied if k < at)
            and all(k in self.state.rng for k in other.draws if k < at)
        )

    def value_now(self, state: SegmentState, key: Key) -> torch.Tensor:
        """Make a given-up value while the segment is still open (a gradient inside a block)."""
        program = self.program
        records = list(program.records[: self.at]) if program is not None else self.records
        outside = {k: tensor for k, (tensor, _) in self.flow.outside.items()}
        valid = {k: tensor for k, (tensor, seen) in self.kept.items() if tensor._version == seen}
        held = frozenset((*(k for k in outside if k[1]), *valid))
        group = slice_segment([r.flow_op() for r in records], [key], held).groups[0]
        have = {**outside, **valid, **self.copies}
        env: dict[Key, torch.Tensor] = {k: have[k] for k in group.sources}
        self.paused = True
        try:
            state.play(group, records, env, None)
        finally:
            self.paused = False
        return env[key]


def unpack(packed: Any) -> torch.Tensor:
    """Give autograd back what `Tape.pack` stored."""
    if type(packed) is Handle:
        return packed.state.value(packed.arg)
    if type(packed) is CheckedHandle:
        return packed.value()
    tensor, version = packed
    if tensor._version != version:
        raise ReplayError(
            f"a tensor of shape {tuple(tensor.shape)} that backward needs was modified in place",
            numbers=f"version {tensor._version} found, version {version} expected",
            cause="an in-place op wrote into a tensor that autograd had saved",
            fix="use the out-of-place op, or clone the tensor before writing",
        )
    return tensor  # type: ignore[no-any-return]
