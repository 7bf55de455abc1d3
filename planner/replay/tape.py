"""The tape: runs a segment's forward once, follows or records its ops, gives saved tensors up.

The first run of a segment is *recorded*: every op and every pack is written down (slow, complete,
see `writer`). Later runs are *followed*: each op is compared with the recorded one (same overload,
same values through the same views, same constants), which costs a fraction; from the first
difference on the run is recorded again. A followed run holds each outside value until the segment
closes, so that whatever comes after a difference can still be replayed.
"""

from __future__ import annotations

from math import copysign
from typing import Any

import torch

from planner.errors import ReplayError
from planner.replay.aside import let_transforms_in
from planner.replay.audit import audit
from planner.replay.flow import PLAIN, Arg, Key
from planner.replay.launches import LAUNCH
from planner.replay.program import Pack, Program
from planner.replay.recipe import Recipe
from planner.replay.record import SKIP, Many, OpRecord, tensors_in, written_tensors
from planner.replay.slicing import slice_segment
from planner.replay.stack import push_hooks, remove_hooks, remove_mode
from planner.replay.state import OVERWRITTEN, Handle, SegmentState
from planner.replay.traits import traits_of
from planner.replay.writer import TapeWriter, all_on_tape, generator_used, kept, passthrough

_NUMBERS = (int, float)
_COMPARED = (int, float, bool, str, list)
let_transforms_in()


class Tape(TapeWriter):
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
        self.known, self.base, self.pins = self.flow.known, self.flow.base, self.flow.pins
        self.state.open_tape = self
        self.at = 0
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
        if program is None:
            program = self.compile()
            overwritten = self.flow.overwritten(program.sources) - self.copies.keys()
        if learn and not overwritten:
            self.recipe.learned(program)
        self.state.open_tape = None
        self.state.bind(program)
        if program.drops:
            self.state.sources.update((key, self._source(key)) for key in program.sources)
            for key in overwritten:
                self.state.sources[key] = (self.state.sources[key][0], OVERWRITTEN)
        if self.originals:
            finding = audit(self.state, program, self.originals)
            if finding is not None:
                self.recipe.findings.append(finding)
        for held in (self.kept, self.copies, self.originals):
            held.clear()
        self.flow.close()
        del self.state  # autograd's nodes hold this tape's hooks; they must not hold the sources
        return removed

    def _source(self, key: Key) -> tuple[torch.Tensor, int | None]:
        copy = self.copies.get(key)
        if copy is not None:
            return copy, None
        tensor, version = self.kept.get(key) or self.flow.outside[key]
        return tensor.detach(), version  # also of a leaf: its `.data` may be replaced

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
                    and self._same(record, types, args, kwargs)
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

    # -- comparing ----------------------------------------------------------------------------

    def _same(self, record: OpRecord, types: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        if types or record.opaque:
            return record.opaque and (
                bool(types) or traits_of(record.func).opaque or not all_on_tape(args, kwargs)
            )
        try:
            return self._same_op(record, args, kwargs)
        except (AttributeError, RuntimeError, NotImplementedError):
            return False  # no tensor, or one without storage or version

    def _same_op(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> bool:
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
        if wanted is SKIP:
            return isinstance(got, torch.Tensor)
        if isinstance(got, torch.Tensor):
            return False
        if isinstance(got, torch.Generator):
            return isinstance(wanted, torch.Generator)
        if type(wanted) is not type(got) or wanted != got:
            return False
        return type(got) is not float or copysign(1.0, wanted) == copysign(1.0, got)

    def _same_tensor(self, wanted: Arg, got: torch.Tensor) -> bool:
        slot = self.known.get(got.untyped_storage()._cdata)
        if wanted.first:
            return self._same_outside(wanted, got, slot)
        return (
            slot == wanted.slot
            and got.size() == wanted.size
            and got.stride() == wanted.stride
            and got.storage_offset() == wanted.offset
            and got._version - self.base[slot] == wanted.counter
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
            or got.is_conj() != bool(wanted.bits & 1)
            or got.is_neg() != bool(wanted.bits & 2)
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
        self.flow.outside[(wanted.slot, wanted.version)] = (got, got._version)
        return True

    def _override(self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Numbers that change from step to step (`x * self.alpha`) are taken from this step."""
        self.state.overrides[self.at] = (
            tuple(_number(w, g) for w, g in zip(record.args, args, strict=True)),
            tuple((name, _number(w, kwargs[name])) for name, w in record.kwargs),
        )

    # -- what autograd packs ------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Any:
        """Decide the fate of a tensor that autograd saves: a handle, or (tensor, version)."""
        if self.paused:
            return kept(tensor)
        while (program := self.program) is not None:
            packed = self.packed
            if packed < len(program.packs):
                pack = program.packs[packed]
                if pack.at == self.at:
                    if pack.stays or self._same_pack(pack, tensor):
                        self.packed = packed + 1
                        return self.give_up(pack.arg, tensor) if pack.dropped else kept(tensor)
                    self.flow.roll_back(pack.slots)
            self._diverge(None)
        return self.record_pack(tensor)

    def _same_pack(self, pack: Pack, tensor: torch.Tensor) -> bool:
        if type(tensor) not in PLAIN or len(self.base) != pack.slots:
            return False
        try:
            return self._same_tensor(pack.arg, tensor)
        except (RuntimeError, NotImplementedError):
            return False

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
    tensor, version = packed
    if tensor._version != version:
        raise ReplayError(
            f"a tensor of shape {tuple(tensor.shape)} that backward needs was modified in place",
            numbers=f"version {tensor._version} found, version {version} expected",
            cause="an in-place op wrote into a tensor that autograd had saved",
            fix="use the out-of-place op, or clone the tensor before writing",
        )
    return tensor  # type: ignore[no-any-return]


def _number(recorded: Any, now: Any) -> Any:
    return now if type(recorded) in _NUMBERS and type(now) in _NUMBERS else recorded
