"""The tape: runs a segment's forward once, follows or records its ops, gives saved tensors up.

The first run of a segment is *recorded*: every op and every pack is written down (slow, complete,
see `flow`). Later runs are *followed*: each op is compared with the recorded one (same overload,
same values through the same views, same constants), which costs a fraction; from the first
difference on the run is recorded again. A followed run holds each outside value until the segment
closes, so that whatever comes after a difference can still be replayed.

FATES ARE SAFE    a tensor is given up only when every op that leads to it, back to held values,
                  is on the tape; anything else autograd keeps, as without a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from planner.errors import ReplayError
from planner.replay.flow import PLAIN, Arg, Flow, Key
from planner.replay.program import Pack, Program, compile_program
from planner.replay.record import (
    SKIP,
    Many,
    OpRecord,
    blank_record,
    finish_record,
    tensors_in,
    write_record,
    written_tensors,
)
from planner.replay.slicing import slice_segment
from planner.replay.state import Handle, SegmentState
from planner.replay.traits import generator_of, traits_of

_push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
_pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks
_free_weak = torch.UntypedStorage._free_weak_ref
_passthrough: set[int] = set()  # ids of op overloads that a tape ignores


class Recipe:
    """What the plan wants of a segment, and what earlier runs taught.

    Attributes:
        name: label for errors.
        address: names an op for the plan (called in op order while recording), or None.
        keeps: tells whether the plan keeps output `number` of the op at an address.
        keep_all: record only, give nothing up.
        cut_depths: depth by address of the ops before which the segment is cut.
        programs: recorded variants, the last used first.
        replayed: one counter shared by all segments of an applied plan.
    """

    LIMIT = 8  # recorded variants kept per segment (shapes, modes, branches)

    def __init__(self, name: str, replayed: list[int] | None = None) -> None:
        self.name = name
        self.address: Callable[[], Callable[[str], str]] | None = None
        self.keeps: Callable[[str, int], bool] | None = None
        self.keep_all = False
        self.cut_depths: dict[str, int] = {}
        self.programs: list[Program] = []
        self.replayed = replayed if replayed is not None else [0]

    def learned(self, program: Program) -> None:
        """Put a program first among the variants."""
        others = [p for p in self.programs if p is not program]
        self.programs[:] = [program, *others][: self.LIMIT]


class Tape(TorchDispatchMode):
    """One run of one segment, from `open` to `close`."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let compiled code inside a segment run compiled; what it makes comes from outside."""
        return True

    def __init__(self, recipe: Recipe, program: Program | None) -> None:
        super().__init__()
        self.recipe = recipe
        self.program = program
        self.flow = Flow()
        self.known = self.flow.known
        self.base = self.flow.base
        self.state = SegmentState(recipe.name, recipe.replayed)
        self.state.open_tape = self
        self.at = 0
        self.packed = 0
        self.paused = False
        self.kept: dict[Key, tuple[torch.Tensor, int]] = {}  # tensor, version
        self.copies: dict[Key, torch.Tensor] = {}
        self.records: list[OpRecord] = []
        self.packs: list[Pack] = []
        self.lost: set[Key] = set()
        self.tried: list[Program] = []
        self.namer: Callable[[str], str] | None = None
        if program is None:
            self._begin_recording()

    # -- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Start listening: ops through the dispatch mode, packs through the hooks."""
        self.__enter__()
        _push_hooks(self.pack, unpack)

    def close(self, learn: bool = True) -> None:
        """Stop listening; leave behind what the replay needs and nothing else."""
        _remove_hooks(self.pack)
        _remove_mode(self)
        program = self.program
        if program is not None and (
            self.at != len(program.records) or self.packed != len(program.packs)
        ):
            self._diverge(None)
            program = None
        if program is None:
            program = self._compile()
        if learn and (not self.recipe.programs or self.recipe.programs[0] is not program):
            self.recipe.learned(program)
        state = self.state
        state.open_tape = None
        state.bind(program)
        if program.drops:
            state.sources.update((key, self._source(key)) for key in program.sources)
        self.kept.clear()
        self.copies.clear()
        self.flow.close()

    def _source(self, key: Key) -> tuple[torch.Tensor, int | None]:
        copy = self.copies.get(key)
        if copy is not None:
            return copy, None
        tensor, version = self.kept.get(key) or self.flow.outside[key]
        return (tensor if tensor.is_leaf else tensor.detach()), version

    # -- every op -----------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Follow or record one op."""
        if id(func) in _passthrough or self.paused:
            return func(*args, **kwargs) if kwargs else func(*args)
        while (program := self.program) is not None:
            at = self.at
            if at < len(program.records):
                record = program.records[at]
                if record.func is func and self._same(record, types, args, kwargs):
                    return self._follow(program, record, at, args, kwargs)
                self.flow.roll_back(record.slots)
            self._diverge(func)
        return self._record(func, types, args, kwargs or {})

    def _same(self, record: OpRecord, types: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        if record.opaque:
            return bool(types) or traits_of(record.func).opaque or not all_on_tape(args, kwargs)
        try:
            return not types and self._same_op(record, args, kwargs)
        except (RuntimeError, NotImplementedError):  # a tensor without storage or version
            return False

    def _follow(
        self, program: Program, record: OpRecord, at: int, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        if at in program.copied:
            self._copy_outside(program.copied[at])
        if record.random and at in program.replayed:
            self.state.rng[at] = _generator(record, args, kwargs).get_state()
        out = record.func(*args, **kwargs) if kwargs else record.func(*args)
        self.at = at + 1
        outs = record.outs
        if outs:
            if type(out) is torch.Tensor:
                flat: Any = (out,)
            else:
                flat = tuple(tensors_in(out))
            for slot, tensor in zip(outs, flat, strict=True):
                if slot >= 0:
                    pin = tensor.untyped_storage()._weak_ref()
                    self.flow.pins.append(pin)
                    self.known[pin] = slot
                    self.base.append(0)
        if record.outside_writes:
            self._note_outside_writes(record, args, kwargs)
        if record.keep:
            self._keep(record, args, kwargs, out)
        return out

    def _note_outside_writes(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> None:
        for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
            slot = self.known[tensor.untyped_storage()._cdata]
            for key in record.outside_writes:
                if key[0] == slot:  # the counter moves once this op has returned
                    self.flow.outside[key] = (tensor, tensor._version + 1)

    def _same_op(self, record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> bool:
        expected = record.args
        if len(expected) != len(args):
            return False
        odd = False
        for wanted, got in zip(expected, args, strict=True):
            if type(wanted) is Arg:
                if not (isinstance(got, torch.Tensor) and self._same_tensor(wanted, got)):
                    return False
            elif wanted is not got and not self._same_constant(wanted, got):
                if type(wanted) is not type(got) or type(got) not in (int, float):
                    return False
                odd = True
        if kwargs or record.kwargs:
            if len(record.kwargs) != len(kwargs or ()):
                return False
            for (name, wanted), (other, got) in zip(record.kwargs, kwargs.items(), strict=True):
                if name != other:
                    return False
                if not self._same_constant(wanted, got):
                    if type(wanted) is not type(got) or type(got) not in (int, float):
                        return False
                    odd = True
        if odd:
            self._override(record, args, kwargs or {})
        return True

    def _same_constant(self, wanted: Any, got: Any) -> bool:
        if type(wanted) is Arg:
            return isinstance(got, torch.Tensor) and self._same_tensor(wanted, got)
        if isinstance(wanted, Many):
            return (
                type(got) is wanted.kind
                and len(got) == len(wanted)
                and all(self._same_constant(w, g) for w, g in zip(wanted, got, strict=True))
            )
        if wanted is SKIP:
            return isinstance(got, torch.Tensor)
        if isinstance(got, torch.Tensor):
            return False
        if isinstance(got, torch.Generator):
            return isinstance(wanted, torch.Generator)
        return type(wanted) is type(got) and bool(wanted == got)

    def _same_tensor(self, wanted: Arg, got: torch.Tensor) -> bool:
        storage = got.untyped_storage()
        slot = self.known.get(storage._cdata)
        if wanted[7]:  # first sight of a value from outside
            return self._same_outside(wanted, got, slot)
        return (
            slot == wanted[0]
            and got.size() == wanted[2]
            and got.stride() == wanted[3]
            and got.storage_offset() == wanted[4]
            and got._version - self.base[slot] == wanted[6]
            and got.dtype is wanted[5]
            and not (wanted[9] or got.is_conj() or got.is_neg())
        )

    def _same_outside(self, wanted: Arg, got: torch.Tensor, slot: int | None) -> bool:
        if (
            type(got) not in PLAIN
            or got.size() != wanted.size
            or got.stride() != wanted.stride
            or got.storage_offset() != wanted.offset
            or got.dtype is not wanted.dtype
            or got.device != wanted.device
            or wanted.bits
            or got.is_conj()
            or got.is_neg()
        ):
            return False
        if wanted.version == 0:
            if slot is not None:
                return False
            pin = got.untyped_storage()._weak_ref()
            self.flow.pins.append(pin)
            self.known[pin] = wanted.slot
            self.base.append(got._version)
        elif slot != wanted.slot or got._version - self.base[slot] != wanted.counter:
            return False
        self.flow.outside[(wanted.slot, wanted.version)] = (got, got._version)
        return True

    def _override(
        self, record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Numbers that change from step to step (`x * self.alpha`) are taken from this step."""
        self.state.overrides[self.at] = (
            tuple(_number(w, g) for w, g in zip(record.args, args, strict=True)),
            tuple((name, _number(w, kwargs[name])) for name, w in record.kwargs),
        )

    # -- what autograd packs ------------------------------------------------------------------

    def pack(self, tensor: torch.Tensor) -> Any:
        """Decide the fate of a tensor that autograd saves: a handle, or (tensor, version)."""
        if self.paused:
            return (tensor, tensor._version)
        while (program := self.program) is not None:
            if self.packed < len(program.packs):
                pack = program.packs[self.packed]
                if pack.at == self.at and self._same_packed(pack, tensor):
                    self.packed += 1
                    if pack.dropped:
                        return self._give_up(pack.arg)
                    return (tensor, tensor._version)
                self.flow.roll_back(pack.slots)
            self._diverge(None)
        return self._record_pack(tensor)

    def _same_packed(self, pack: Pack, tensor: torch.Tensor) -> bool:
        try:
            return type(tensor) in PLAIN and self._same_tensor(pack.arg, tensor)
        except (RuntimeError, NotImplementedError):
            return False

    def _give_up(self, arg: Arg) -> Handle:
        key = arg.key
        left = self.state.left
        left[key] = left.get(key, 0) + 1
        return Handle(self.state, arg)

    def _record_pack(self, tensor: torch.Tensor) -> Any:
        if not _on_tape(tensor):
            return (tensor, tensor._version)
        slots = len(self.flow.base)
        arg = self.flow.read(tensor)
        dropped = self._may_drop(arg.key)
        self.packs.append(Pack(len(self.records), arg, dropped, slots))
        if dropped:
            return self._give_up(arg)
        self._hold(arg.key, tensor)
        return (tensor, tensor._version)

    def _may_drop(self, key: Key) -> bool:
        return (
            not self.recipe.keep_all
            and key in self.replayable
            and key not in self.wished
            and not self.flow.external[key[0]]
        )

    # -- recording ----------------------------------------------------------------------------

    def _begin_recording(self) -> None:
        self.replayable: set[Key] = set()
        self.wished: set[Key] = set()
        if self.recipe.address is not None:
            self.namer = self.recipe.address()

    def _record(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        traits = traits_of(func)
        if traits.passthrough:
            _passthrough.add(id(func))
            return func(*args, **kwargs)
        if traits.opaque or not all_on_tape(args, kwargs):
            record = blank_record(self.flow, func)
            record.opaque = True
            out = self._run_opaque(func, args, kwargs)
            if self.namer is not None:
                self.namer(str(func))
            self.records.append(record)
            return out
        record, written = write_record(self.flow, func, traits, args, kwargs)
        for tensor in written:
            self._copy_before_write(tensor, record)
        if record.random:
            state = _generator_of(record, args, kwargs, written).get_state()
            self.state.rng[len(self.records)] = state
        out = func(*args, **kwargs)
        finish_record(self.flow, record, traits, written, args, out)
        self._note(record, args, kwargs, out)
        return out

    def _note(self, record: OpRecord, args: Any, kwargs: Any, out: Any) -> None:
        """Add a finished record: can its results be replayed, does the plan keep some."""
        made = (*record.makes, *(new for _, new in record.writes))
        if all(key in self.replayable or self._outside(key) for key in record.reads):
            self.replayable.update(made)
        if self.namer is not None:
            record.address = self.namer(str(record.func))
        keeps = self.recipe.keeps
        if keeps is not None and record.address:
            record.keep = tuple(k for i, k in enumerate(made) if keeps(record.address, i))
            self.wished.update(record.keep)
        self.records.append(record)
        if record.keep:
            self._keep(record, args, kwargs, out)

    def _outside(self, key: Key) -> bool:
        return key in self.flow.outside and key not in self.lost

    def _run_opaque(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op that is not on the tape; what it writes or makes comes from outside."""
        tensors = [t for t in tensors_in((args, kwargs)) if _on_tape(t)]
        before = [t.untyped_storage().clone() for t in tensors]
        out = func(*args, **kwargs)
        declared = {id(t) for t in written_tensors(traits_of(func), args, kwargs)}
        for tensor, old in zip(tensors, before, strict=True):
            if id(tensor) in declared or not _same_bytes(tensor.untyped_storage(), old):
                self.flow.wrote_unseen(tensor)
        return out

    def _copy_before_write(self, tensor: torch.Tensor, record: OpRecord) -> None:
        slot = self.flow.known[tensor.untyped_storage()._cdata]
        key = (slot, self.flow.version[slot])
        if key in self.flow.outside and any(key in earlier.reads for earlier in self.records):
            self._copy_outside((key,))

    def _copy_outside(self, keys: tuple[Key, ...]) -> None:
        """Copy on write: an outside value that a replay may read is about to be overwritten."""
        for key in keys:
            if key not in self.copies:
                self.copies[key] = _storage_copy(self.flow.outside[key][0])

    def _keep(self, record: OpRecord, args: Any, kwargs: Any, out: Any) -> None:
        made = list(tensors_in(out))
        for key in record.keep:
            if key in record.makes:
                self.kept[key] = (made[record.outs.index(key[0])], 0)
            else:  # written in place; the counter moves once this op has returned
                for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
                    if self.known[tensor.untyped_storage()._cdata] == key[0]:
                        self.kept[key] = (tensor, tensor._version + 1)

    def _hold(self, key: Key, tensor: torch.Tensor) -> None:
        """A packed tensor that stays may serve as a source."""
        if key not in self.flow.outside and key in self.replayable:
            self.kept.setdefault(key, (tensor, tensor._version))

    def _diverge(self, func: Any) -> None:
        """This run differs from the recorded one: follow a sibling, or record from here."""
        program = self.program
        assert program is not None
        for other in self.recipe.programs:
            if other is not program and func is not None and self._continues(program, other, func):
                self.program = other
                self.tried.append(program)
                return
        self.program = None
        self.records = list(program.records[: self.at])
        self.packs = list(program.packs[: self.packed])
        self._begin_recording()
        self._rebuild_flow()

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
            and all(k in program.replayed or k >= at for k in other.replayed if other.records[k].random)
        )

    def _rebuild_flow(self) -> None:
        """Bring the slow bookkeeping up to where following stopped."""
        flow = self.flow
        count = len(flow.base)
        flow.bumps = [0] * count
        flow.version = [0] * count
        flow.external = [(slot, 0) in flow.outside for slot in range(count)]
        for record in self.records:
            if traits_of(record.func).blank:
                flow.blank.update(slot for slot, _ in record.makes)
            for arg in _args_of(record):
                flow.version[arg.slot] = max(flow.version[arg.slot], arg.version)
                flow.bumps[arg.slot] = max(flow.bumps[arg.slot], arg.counter)
            for old, new in record.writes:
                flow.blank.discard(new[0])
                flow.version[new[0]] = new[1]
                flow.bumps[new[0]] += 1
                if old in flow.outside and old not in self.copies:
                    self.lost.add(old)
            made = (*record.makes, *(new for _, new in record.writes))
            if all(key in self.replayable or self._outside(key) for key in record.reads):
                self.replayable.update(made)
            self.wished.update(record.keep)
            if self.namer is not None:
                self.namer(str(record.func))

    # -- compiling ----------------------------------------------------------------------------

    def _compile(self) -> Program:
        version, external = self.flow.version, self.flow.external
        held = {key for key in self.kept if key[1] == version[key[0]]}
        held.update(key for r in self.records for _, key in r.writes if external[key[0]])
        cuts = tuple(
            (number, depth)
            for number, record in enumerate(self.records)
            if (depth := self.recipe.cut_depths.get(record.address, 0))
        )
        return compile_program(self.records, self.packs, frozenset(held), cuts)

    def value_now(self, state: SegmentState, key: Key) -> torch.Tensor:
        """Make a given-up value while the segment is still open (a gradient inside a block)."""
        records = (
            list(self.program.records[: self.at]) if self.program is not None else self.records
        )
        held = frozenset(k for k in self.flow.outside if k[1])
        group = slice_segment([r.flow_op() for r in records], [key], held).groups[0]
        env = {
            k: self.copies[k] if k in self.copies else self.flow.outside[k][0]
            for k in group.sources
        }
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
            unit="",
        )
    return tensor  # type: ignore[no-any-return]


def _on_tape(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_inference()
    )


def all_on_tape(args: Any, kwargs: Any) -> bool:
    return all(_on_tape(t) for t in tensors_in((args, kwargs)))


def _number(recorded: Any, now: Any) -> Any:
    return now if type(recorded) in (int, float) and type(now) in (int, float) else recorded


def _same_bytes(storage: torch.UntypedStorage, old: torch.UntypedStorage) -> bool:
    if storage.nbytes() != old.nbytes():
        return False
    a = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    b = torch.empty(0, dtype=torch.uint8, device=old.device).set_(old)
    return torch.equal(a, b)


def _storage_copy(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _args_of(record: OpRecord) -> list[Arg]:
    found: list[Arg] = []

    def walk(tree: Any) -> None:
        if type(tree) is Arg:
            found.append(tree)
        elif isinstance(tree, Many):
            for item in tree:
                walk(item)

    for tree in record.args:
        walk(tree)
    for _, tree in record.kwargs:
        walk(tree)
    return found


def _generator(record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> torch.Generator:
    where = record.generator
    if where is None:
        return generator_of(record.device)
    found: torch.Generator = args[where] if isinstance(where, int) else kwargs[where]
    return found


def _generator_of(
    record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[torch.Tensor]
) -> torch.Generator:
    if record.generator is not None:
        return _generator(record, args, kwargs)
    device = kwargs.get("device")
    if device is None:
        tensor = next(iter(tensors_in((args, kwargs))), None)
        device = tensor.device if tensor is not None else torch.device("cpu")
    return generator_of(torch.device(device))


def _remove_mode(tape: Tape) -> None:
    """Take our mode off the stack, wherever it is (a module may have left modes above it)."""
    if _get_current_dispatch_mode() is tape:
        tape.__exit__(None, None, None)
        return
    if tape not in _get_current_dispatch_mode_stack():
        return
    above = []
    while (mode := _get_current_dispatch_mode_stack()[-1]) is not tape:
        above.append(mode)
        _pop_mode()
    tape.__exit__(None, None, None)
    for mode in reversed(above):
        _push_mode(mode)


def _remove_hooks(pack: Any) -> None:
    """Take our saved-tensor hooks off the stack, wherever they are."""
    above = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        _pop_hooks()
        if top[0] == pack:
            break
        above.append(top)
    for hooks in reversed(above):
        _push_hooks(*hooks)


