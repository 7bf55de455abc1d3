"""Records of ops: what a tape writes down for one op, and how arguments are taken apart and back.

A recorded argument tree mirrors the op's own: `Arg` for tensors, `Many` for lists that hold
tensors, anything else as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from planner.replay.flow import PLAIN, Arg, Flow, Key
from planner.replay.slicing import FlowOp
from planner.replay.traits import Traits, traits_of


class Many(tuple[Any, ...]):
    """A list argument with tensors inside; `kind` rebuilds the original container."""

    kind: type = list


class ManyTuple(Many):
    """The same for a tuple."""

    kind = tuple


class Skip:
    """A statistic that the kernel would update: a replay passes None, or zeros in its place.

    Args:
        like: the statistic, for kernels that take its dtype for the one to compute in.
    """

    __slots__ = ("_make",)

    def __init__(self, like: torch.Tensor | None = None) -> None:
        self._make: Callable[[], torch.Tensor] | None = None
        if like is not None:
            size, dtype, device = like.size(), like.dtype, like.device
            self._make = lambda: torch.zeros(size, dtype=dtype, device=device)

    def stand_in(self) -> torch.Tensor | None:
        """Return what a replay passes."""
        return None if self._make is None else self._make()


class OpRecord:
    """One op of a tape. Immutable once written; shared between programs with a common prefix.

    Attributes:
        func: the op overload.
        args, kwargs: recorded argument trees (kwargs as sorted pairs).
        outs: for each flat output, the slot of its fresh storage or -1.
        makes: values made in fresh storage.
        writes: (old, new) values written in place.
        hidden: positions of statistics that the op updates without saying so.
        generator: argument position or name of an explicit generator; None for the default one.
        random: draws from a generator.
        device: of the first tensor output (default generator to use).
        address: `unit/op/ordinal` within the segment, or "" when nobody asked.
        keep: values made here that the plan keeps.
        opaque: not replayable; only its place in the order is recorded.
        aside: opaque since it ran on another stream than the segment's.
        outside_writes: new values written into storages from outside.
        relabelled: the same bytes have been seen under several meanings: look twice.
        slots: number of storages known before the op.
        touched: slots that an opaque op was given, and may have written.
        overwrites: values that an opaque op writes over, now or later.
        choices: kernel choices in force where they were not those of the segment's opening.
        again: (func, args, kwargs) to run at replay where it is not the op itself.
        call: the op's entry point without the overload's Python layer.
        many_outs: returns a tuple or list rather than one tensor.
        plain: the arguments are tensors and constants only, and nothing is drawn.
    """

    __slots__ = (
        "address",
        "again",
        "args",
        "aside",
        "call",
        "choices",
        "device",
        "func",
        "generator",
        "hidden",
        "keep",
        "kwargs",
        "makes",
        "many_outs",
        "opaque",
        "outs",
        "outside_writes",
        "overwrites",
        "plain",
        "random",
        "reads",
        "relabelled",
        "slots",
        "touched",
        "writes",
    )

    func: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[int, ...]
    makes: tuple[Key, ...]
    writes: tuple[tuple[Key, Key], ...]
    reads: tuple[Key, ...]
    hidden: tuple[int, ...]
    random: bool
    generator: str | int | None
    device: torch.device
    address: str
    keep: tuple[Key, ...]
    opaque: bool
    aside: bool
    outside_writes: tuple[Key, ...]
    relabelled: bool
    slots: int
    touched: tuple[int, ...]
    overwrites: tuple[Key, ...]
    again: tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]] | None
    call: Any
    choices: tuple[Any, ...] | None
    plain: bool
    many_outs: bool

    @property
    def statistics(self) -> tuple[Key, ...]:
        """Values of statistics that the op only reads (batch norm in evaluation mode)."""
        if self.hidden or self.opaque:
            return ()
        at = (self.args[p] for p in traits_of(self.func).hidden_writes if p < len(self.args))
        return tuple(arg.key for arg in at if type(arg) is Arg)

    def flow_op(self) -> FlowOp[Key]:
        """The op as pure data flow."""
        return FlowOp(self.reads, self.makes, self.writes)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an op's arguments or results, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)


def written_tensors(
    traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Tensors that the op declares to write in place."""
    found: list[torch.Tensor] = []
    for position in traits.writes:
        if position < len(args):
            found.extend(tensors_in(args[position]))
    for name in traits.keyword_writes:
        found.extend(tensors_in(kwargs.get(name)))
    return found


def record_tree(tree: Any, read: Callable[[torch.Tensor], Arg], reads: dict[Key, None]) -> Any:
    """Return the recorded form of one argument, adding what it reads to `reads`."""
    if isinstance(tree, torch.Tensor):
        arg = read(tree)
        reads[arg.key] = None
        return arg
    if isinstance(tree, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in tree):
        kind = ManyTuple if isinstance(tree, tuple) else Many
        return kind(record_tree(x, read, reads) for x in tree)
    return list(tree) if isinstance(tree, list) else tree


def build_tree(tree: Any, tensor: Callable[[Arg], Any]) -> Any:
    """Inverse of `record_tree`: put tensors for Args."""
    if type(tree) is Arg:
        return tensor(tree)
    if isinstance(tree, Many):
        return tree.kind(build_tree(x, tensor) for x in tree)
    return tree.stand_in() if type(tree) is Skip else tree


def args_of(record: OpRecord) -> list[Arg]:
    """Return the tensors that an op was given, as recorded."""
    found: list[Arg] = []

    def walk(tree: Any) -> None:
        if type(tree) is Arg:
            found.append(tree)
        elif isinstance(tree, Many):
            for item in tree:
                walk(item)

    for tree in (*record.args, *(tree for _, tree in record.kwargs)):
        walk(tree)
    return found


def on_tape(tensor: torch.Tensor) -> bool:
    """Whether a tensor's storage and version can be told: plain, strided, no inference."""
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_inference()
    )


def write_record(
    flow: Flow,
    func: Any,
    traits: Traits,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[OpRecord, list[torch.Tensor]]:
    """Record the reads of an op that is about to run; `finish_record` adds what it made."""
    written = written_tensors(traits, args, kwargs)
    written_ids = {id(t) for t in written}

    def read(tensor: torch.Tensor) -> Arg:
        first = traits.overwrites and id(tensor) in written_ids
        return flow.peek_written(tensor) if first else flow.read(tensor)

    reads: dict[Key, None] = {}
    record = blank_record(flow, func)
    record.hidden = hidden_positions(traits, args)
    record.args = tuple(
        _skip(traits, a) if i in record.hidden else record_tree(a, read, reads)
        for i, a in enumerate(args)
    )
    record.kwargs = tuple((name, record_tree(a, read, reads)) for name, a in kwargs.items())
    record.reads = () if traits.blank else tuple(reads)  # blank memory depends on nothing
    if traits.relabels or any(a.bits or a.dtype.is_complex for a in args_of(record)):
        flow.relabelled = True
    record.relabelled = flow.relabelled
    record.random = traits.random
    record.generator = _generator(args, kwargs)
    return record, written


def blank_record(flow: Flow, func: Any) -> OpRecord:
    """A record that reads and makes nothing yet (all there is to say of an opaque op)."""
    record = OpRecord()
    record.func = func
    record.args = record.kwargs = record.reads = record.outs = record.makes = record.writes = ()
    record.keep = record.outside_writes = record.hidden = ()
    record.touched = record.overwrites = ()
    record.random = record.opaque = record.aside = record.relabelled = False
    record.generator = None
    record.device = torch.device("cpu")
    record.address = ""
    record.again = record.choices = None
    record.call = getattr(func, "_op", func)
    record.plain = record.many_outs = False
    record.slots = len(flow.base)
    return record


def finish_record(
    flow: Flow,
    record: OpRecord,
    traits: Traits,
    written: list[torch.Tensor],
    args: tuple[Any, ...],
    out: Any,
) -> None:
    """Add what the op made and wrote, after it ran."""
    record.writes = tuple(flow.wrote(t) for t in _distinct_storages(written))
    if torch.Tag.inplace_view in record.func.tags:  # `t_`: the tensor has another geometry now
        flow.forget_shapes(new for _, new in record.writes)
    record.outside_writes = tuple(n for _, n in record.writes if flow.external[n[0]])
    outs: list[int] = []
    makes: list[Key] = []
    device: torch.device | None = None
    for tensor in tensors_in(out):
        device = device or tensor.device
        key = flow.made(tensor, traits.blank) if on_tape(tensor) else None
        outs.append(-1 if key is None else key[0])
        if key is not None:
            makes.append(key)
    record.outs, record.makes = tuple(outs), tuple(makes)
    record.many_outs = not isinstance(out, torch.Tensor)
    record.device = device or (written[0].device if written else torch.device("cpu"))
    if traits.blank and isinstance(out, torch.Tensor):
        options = (("dtype", out.dtype), ("device", out.device))
        sizes = (list(out.size()), list(out.stride()))
        record.again = (torch.ops.aten.empty_strided.default, sizes, options)
    if traits.copies and record.device.type == "cpu":
        record.again = _finished(record)
    record.plain = not (
        record.kwargs or record.random or record.again or record.choices
    ) and not any(isinstance(a, (Many, Skip)) for a in record.args)
    for position in record.hidden:
        flow.wrote_unseen(args[position])


def _finished(record: OpRecord) -> tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]] | None:
    """A copy to the host that does not wait for its device, as one that does.

    In the forward, something that no tape sees waited for it before the next op read the copy.
    """
    named = dict(record.kwargs)
    if record.func._schema.name == "aten::copy_" and len(record.args) == 3:
        named["non_blocking"] = record.args[2]
    if named.get("non_blocking") is not True:
        return None
    named["non_blocking"] = False
    return record.func, record.args[:2], tuple(named.items())


def _skip(traits: Traits, statistic: torch.Tensor) -> Skip:
    return Skip(statistic if traits.needs_statistics else None)


def hidden_positions(traits: Traits, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of statistics that this call of an op updates without saying so."""
    flag = traits.hidden_flag
    if not traits.hidden_writes or (
        flag is not None and (len(args) <= flag or args[flag] is not True)
    ):
        return ()
    return tuple(p for p in traits.hidden_writes if isinstance(args[p], torch.Tensor))


def _generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | int | None:
    for position, value in enumerate(args):
        if isinstance(value, torch.Generator):
            return position
    return next((n for n, v in kwargs.items() if isinstance(v, torch.Generator)), None)


def _distinct_storages(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    seen: set[int] = set()
    found = []
    for tensor in tensors:
        address = tensor.untyped_storage()._cdata
        if address not in seen:
            seen.add(address)
            found.append(tensor)
    return found
