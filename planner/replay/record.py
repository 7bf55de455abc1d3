"""Records of ops: what a tape writes down for one op.

An op is recorded in two steps, since some facts are only there before it ran and others only
after: `begin_record` reads its arguments, `finish_record` adds what it made and returns the record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from planner.replay.flow import Arg, Flow, Key
from planner.replay.slicing import FlowOp
from planner.replay.surroundings import settings_of
from planner.replay.traits import Traits, traits_of
from planner.replay.trees import Many, Statistic, args_in, on_tape, record_tree, tensors_in


class Call(NamedTuple):
    """An op and its recorded argument trees (keyword arguments as pairs)."""

    func: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, eq=False)
class OpRecord:
    """One op of a tape; shared between programs with a common prefix.

    Attributes:
        func: the op overload.
        args, kwargs: recorded argument trees (kwargs as pairs).
        outs: for each flat output, the slot of its fresh storage or -1.
        makes: values made in fresh storage.
        writes: (old, new) values written in place.
        reads: values that it reads.
        hidden: positions of statistics that the op updates without declaring it.
        generator: argument position or name of an explicit generator; None for the default one.
        random: draws from a generator.
        device: of the first tensor output (default generator to use).
        address: `unit/op/ordinal` within the segment, or "" when ops are not named.
        keep: values made here that the plan keeps.
        opaque: not replayable; only its place in the order is recorded.
        aside: opaque since it ran on another stream than the segment's.
        outside_writes: new values written into storages from outside.
        relabelled: the same bytes have been seen under several meanings: compare conjugation too.
        slots: number of storages known before the op.
        touched: slots that an opaque op was given, and may have written.
        overwrites: values that an opaque op writes over, now or later.
        choices: kernel choices in force where they were not those of the segment's opening.
        settings: positions of the settings on which its kernel depends, see `surroundings`.
        again: what to run at replay where it is not the op itself.
        call: the op's entry point without the overload's Python layer.
        many_outs: returns a tuple or list rather than one tensor.
        plain: the arguments are tensors and constants only, and nothing is drawn.
    """

    func: Any
    slots: int
    call: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    outs: tuple[int, ...] = ()
    makes: tuple[Key, ...] = ()
    writes: tuple[tuple[Key, Key], ...] = ()
    reads: tuple[Key, ...] = ()
    hidden: tuple[int, ...] = ()
    generator: str | int | None = None
    random: bool = False
    device: torch.device = torch.device("cpu")
    address: str = ""
    keep: tuple[Key, ...] = ()
    opaque: bool = False
    aside: bool = False
    outside_writes: tuple[Key, ...] = ()
    relabelled: bool = False
    touched: tuple[int, ...] = ()
    overwrites: tuple[Key, ...] = ()
    choices: tuple[Any, ...] | None = None
    settings: tuple[int, ...] = ()
    again: Call | None = None
    many_outs: bool = False
    plain: bool = False

    @property
    def statistics(self) -> tuple[Key, ...]:
        """Values of statistics that the op only reads (batch norm in evaluation mode)."""
        if self.hidden or self.opaque:
            return ()
        at = (self.args[p] for p in traits_of(self.func).hidden_writes if p < len(self.args))
        return tuple(arg.key for arg in at if type(arg) is Arg)

    @property
    def tensor_args(self) -> list[Arg]:
        """The tensors that the op was given, as recorded."""
        return list(args_in((*self.args, *(tree for _, tree in self.kwargs))))

    def flow_op(self) -> FlowOp[Key]:
        """The op as pure data flow."""
        return FlowOp(self.reads, self.makes, self.writes)


class BegunRecord(NamedTuple):
    """What is known of an op before it runs; see `OpRecord` for the fields of the same names.

    `written` holds the tensors that the op declares to write in place.
    """

    call: Call
    traits: Traits
    slots: int
    reads: tuple[Key, ...]
    hidden: tuple[int, ...]
    generator: str | int | None
    device: torch.device
    relabelled: bool
    choices: tuple[Any, ...] | None
    written: list[torch.Tensor]


def begin_record(
    flow: Flow,
    func: Any,
    traits: Traits,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    choices: tuple[Any, ...] | None = None,
) -> BegunRecord:
    """Record the reads of an op that is about to run; `finish_record` adds what it made."""
    slots = len(flow.base)
    written = written_tensors(traits, args, kwargs)
    written_ids = {id(t) for t in written}

    def read(tensor: torch.Tensor) -> Arg:
        first = traits.overwrites and id(tensor) in written_ids
        return flow.peek_written(tensor) if first else flow.read(tensor)

    reads: dict[Key, None] = {}
    hidden = hidden_positions(traits, args)
    trees = tuple(
        Statistic(a if traits.needs_statistics else None)
        if i in hidden
        else record_tree(a, read, reads)
        for i, a in enumerate(args)
    )
    named = tuple((name, record_tree(a, read, reads)) for name, a in kwargs.items())
    tensors = list(args_in((*trees, *(tree for _, tree in named))))
    if traits.relabels or any(a.bits or a.dtype.is_complex for a in tensors):
        flow.relabelled = True
    return BegunRecord(
        Call(func, trees, named),
        traits,
        slots,
        () if traits.blank else tuple(reads),  # uninitialized memory depends on nothing
        hidden,
        _generator(args, kwargs),
        _device_of_draw(args, kwargs) if traits.may_draw else torch.device("cpu"),
        flow.relabelled,
        choices,
        written,
    )


def finish_record(
    flow: Flow,
    begun: BegunRecord,
    args: tuple[Any, ...],
    out: Any,
    followed: Callable[[torch.Tensor], bool] = on_tape,
    drew: bool | None = None,
) -> OpRecord:
    """Return the record of an op that ran.

    Args:
        out: what it returned.
        followed: which tensors have a storage and a version to follow.
        drew: whether it drew from its generator, where that is known; by default as it is tagged.
    """
    (func, trees, named), traits, written = begun.call, begun.traits, begun.written
    writes = tuple(flow.wrote(t) for t in _distinct_storages(written))
    if torch.Tag.inplace_view in func.tags:  # `t_`: the tensor has another geometry now
        flow.forget_shapes(new for _, new in writes)
    outputs = list(tensors_in(out))
    made = [flow.made(t, traits.blank) if followed(t) else None for t in outputs]
    if torch.Tag.dynamic_output_shape in func.tags:  # it may return another geometry next time
        flow.forget_shapes(key for key in made if key is not None)
    device = next((t.device for t in (*outputs, *written)), torch.device("cpu"))
    again = _again(begun.call, traits, device, out)
    random = traits.random if drew is None else drew
    simple = not (named or random or again or begun.choices)
    for position in begun.hidden:
        flow.wrote_unseen(args[position])
    return OpRecord(
        func=func,
        slots=begun.slots,
        call=entry_point(func),
        args=trees,
        kwargs=named,
        outs=tuple(-1 if key is None else key[0] for key in made),
        makes=tuple(key for key in made if key is not None),
        writes=writes,
        reads=begun.reads,
        hidden=begun.hidden,
        generator=begun.generator,
        random=random,
        device=device,
        outside_writes=tuple(n for _, n in writes if flow.external[n[0]]),
        relabelled=begun.relabelled,
        choices=begun.choices,
        settings=settings_of(func, device),
        again=again,
        many_outs=not isinstance(out, torch.Tensor),
        plain=simple and not any(isinstance(a, (Many, Statistic)) for a in trees),
    )


def entry_point(func: Any) -> Any:
    """Return what calls an op without the overload's Python layer."""
    return getattr(func, "_op", func)


def written_tensors(
    traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the tensors that the op declares to write in place."""
    found: list[torch.Tensor] = []
    for position in traits.writes:
        if position < len(args):
            found.extend(tensors_in(args[position]))
    for name in traits.keyword_writes:
        found.extend(tensors_in(kwargs.get(name)))
    return found


def hidden_positions(traits: Traits, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of statistics that this call of an op updates without declaring it."""
    flag = traits.hidden_flag
    if not traits.hidden_writes or (
        flag is not None and (len(args) <= flag or args[flag] is not True)
    ):
        return ()
    return tuple(p for p in traits.hidden_writes if isinstance(args[p], torch.Tensor))


def _again(call: Call, traits: Traits, device: torch.device, out: Any) -> Call | None:
    """What a replay runs in place of the op, where it is not the op itself."""
    if traits.blank and isinstance(out, torch.Tensor):
        return uninitialized_like(out)
    return _finished(call) if traits.copies and device.type == "cpu" else None


def uninitialized_like(out: torch.Tensor) -> Call:
    """The call that makes memory of the same geometry as `out` without filling it."""
    options = (("dtype", out.dtype), ("device", out.device))
    sizes = (list(out.size()), list(out.stride()))
    return Call(torch.ops.aten.empty_strided.default, sizes, options)


def _finished(call: Call) -> Call | None:
    """A copy to the host that does not wait for its device, as one that does.

    In the forward, something that no tape sees waited for it before the next op read the copy.
    """
    named = dict(call.kwargs)
    if call.func._schema.name == "aten::copy_" and len(call.args) == 3:
        named["non_blocking"] = call.args[2]
    if named.get("non_blocking") is not True:
        return None
    named["non_blocking"] = False
    return Call(call.func, call.args[:2], tuple(named.items()))


def _generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | int | None:
    for position, value in enumerate(args):
        if isinstance(value, torch.Generator):
            return position
    return next((n for n, v in kwargs.items() if isinstance(v, torch.Generator)), None)


def _device_of_draw(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of a random op's output, before it has run."""
    tensor = next(iter(tensors_in((args, kwargs))), None)
    return torch.device(kwargs.get("device") or (tensor.device if tensor is not None else "cpu"))


def _distinct_storages(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    seen: set[int] = set()
    found = []
    for tensor in tensors:
        address = tensor.untyped_storage()._cdata
        if address not in seen:
            seen.add(address)
            found.append(tensor)
    return found
