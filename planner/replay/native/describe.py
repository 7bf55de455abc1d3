"""Describes a recorded program to the C++ core, or says why it is left to the Python path."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from planner.replay.flow import Arg, Key
from planner.replay.program import Pack, Program
from planner.replay.record import Call, OpRecord
from planner.replay.slicing import Group
from planner.replay.traits import traits_of
from planner.replay.trees import Many, Statistic

Described = dict[str, Any]

_TENSOR, _LIST, _STATISTIC, _CONSTANT, _WRAPPED = range(5)  # `Kind` in template.h
_DRAWS = ("cpu", "cuda")


class Unsupported(Exception):
    """A program that only the Python path follows; the message says why."""


class Numbering(NamedTuple):
    """Which value, and which outside value, a number of the core stands for."""

    values: list[Key]
    outside: list[Key]


def reason_against(program: Program) -> str:
    """Return why the core cannot follow a program, "" if it can."""
    if program.statistics:
        return "it reads statistics that another forward may change"
    for number, record in enumerate(program.records):
        reason = _reason_against_op(record, number in program.replayed)
        if not reason and number in program.draws:
            if record.generator is not None:
                reason = "draws from a generator that is passed in"
            elif record.device.type not in _DRAWS:
                reason = f"draws on {record.device.type}"
        if reason:
            return f"{record.func} {reason}"
    return "conjugated values" if any(pack.arg.bits for pack in program.packs) else ""


def _reason_against_op(record: OpRecord, replayed: bool) -> str:
    if record.opaque or not isinstance(record.func, torch._ops.OpOverload):
        return "is opaque"
    if record.func.namespace not in ("aten", "prims"):
        return "is a custom op"
    if record.relabelled or any(arg.bits for arg in record.tensor_args):
        return "reads bytes under several meanings"
    if record.choices is not None and replayed:
        return "runs under kernel choices of its own"
    if record.writes and traits_of(record.func).unversioned:
        return "writes without moving versions"
    trees = (*record.args, *(tree for _, tree in record.kwargs))
    if any(isinstance(t, Statistic) and t.substitute() is not None for t in trees):
        return "needs a substitute for its statistics"
    items = (item for tree in trees if isinstance(tree, Many) for item in tree)
    if any(item is not None and type(item) is not Arg for item in items):
        return "takes a nested list"
    return ""


def describe(program: Program) -> tuple[Described, Numbering]:
    """Return the tables of a program, in the form that the core reads, and the numbering.

    Raises:
        Unsupported: the core cannot follow it.
    """
    reason = reason_against(program)
    if reason:
        raise Unsupported(reason)
    return _Describer(program).describe()


class _Describer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.args: list[Described] = []
        self.numbers: dict[Key, int] = {}
        self.outside: dict[Key, int] = {}
        self.source_args: dict[Key, int] = {}

    def describe(self) -> tuple[Described, Numbering]:
        program = self.program
        ops = [self._op(number, record) for number, record in enumerate(program.records)]
        packs = [self._pack(pack) for pack in program.packs]
        groups = [self._group(group) for group in program.groups]
        made = (key for group in program.groups for key in (*group.makes, *group.cells))
        deliveries = {k: i for i, k in enumerate(dict.fromkeys((*program.dropped, *made)))}
        sources = {key: i for i, key in enumerate(program.sources)}
        for key in (*deliveries, *sources):
            self._number(key)
        values = list(self.numbers)
        described = {
            "args": self.args,
            "ops": ops,
            "packs": packs,
            "groups": groups,
            "owner": [program.owner.get(key, -1) for key in values],
            "source_of": [sources.get(key, -1) for key in values],
            "delivery_of": [deliveries.get(key, -1) for key in values],
            "outside_value": [self._number(key) for key in self.outside],
            "outside_slot": [key[0] for key in self.outside],
            "source_value": [self._number(key) for key in sources],
            "source_outside": [self.outside.get(key, -1) for key in sources],
            "source_arg": [self.source_args.get(key, -1) for key in sources],
            "source_uses": [program.source_uses[key] for key in sources],
            "cell_uses": [program.cell_uses.get(key, 0) for key in deliveries],
            "draws": len(program.draws),
            "slots": 1 + max((key[0] for key in values), default=0),
        }
        return described, Numbering(values, list(self.outside))

    def _number(self, key: Key) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def _outside(self, key: Key) -> int:
        self._number(key)
        return self.outside.setdefault(key, len(self.outside))

    def _arg(self, arg: Arg) -> int:
        self.source_args.setdefault(arg.key, len(self.args))
        self.args.append(
            {
                "slot": arg.slot,
                "value": self._number(arg.key),
                "size": list(arg.size),
                "stride": list(arg.stride),
                "offset": arg.offset,
                "dtype": arg.dtype,
                "device": arg.device,
                "counter": arg.counter,
                "first": arg.first,
                "new_slot": arg.version == 0,
                "direct": arg.direct,
                "source": arg.key in self.program.source_uses,
                "outside": self._outside(arg.key) if arg.first else -1,
            }
        )
        return len(self.args) - 1

    def _entry(self, tree: Any, argument: Any) -> tuple[Any, ...]:
        if type(tree) is Arg:
            return (_TENSOR, self._arg(tree))
        if isinstance(tree, Many):
            return (_LIST, [-1 if item is None else self._arg(item) for item in tree])
        if isinstance(tree, Statistic):
            return (_STATISTIC,)
        if isinstance(tree, (int, float)) and "Tensor" in str(argument.type):
            return (_WRAPPED, tree)  # `x * 0.5`: torch shows modes the number
        return (_CONSTANT, True, tree)

    def _call(self, call: Call) -> tuple[str, str, list[tuple[Any, ...]]]:
        schema = call.func._schema
        named = dict(call.kwargs)
        entries: list[tuple[Any, ...]] = []
        for position, argument in enumerate(schema.arguments):
            if position < len(call.args) and not argument.kwarg_only:
                entries.append(self._entry(call.args[position], argument))
            elif argument.name in named:
                entries.append(self._entry(named[argument.name], argument))
            else:
                entries.append((_CONSTANT, False, None))
        return schema.name, schema.overload_name, entries

    def _op(self, number: int, record: OpRecord) -> Described:
        program = self.program
        outs = {key: record.outs.index(key[0]) for key in record.makes}
        copied = [self._outside(key) for key in program.copied.get(number, ())]
        draws = sorted(program.draws)
        call = self._call(Call(record.func, record.args, record.kwargs))
        writes = [
            (False, self._written(record, key[0]), self._number(key), self._outside(key))
            for key in record.outside_writes
        ]
        keep = [
            (key in outs, outs[key] if key in outs else self._written(record, key[0]))
            + (self._number(key), -1)
            for key in record.keep
        ]
        return {
            "call": call,
            "again": None if record.again is None else self._call(record.again),
            "slots": record.slots,
            "busy": bool(copied or writes or keep or record.hidden or number in program.draws),
            "random": record.random,
            "draw": draws.index(number) if number in program.draws else -1,
            "device": record.device,
            "outs": list(record.outs),
            "made": [-1 if slot < 0 else self._number((slot, 0)) for slot in record.outs],
            "writes": [(self._number(old), self._number(new)) for old, new in record.writes],
            "copied": copied,
            "hidden": list(record.hidden),
            "outside_writes": writes,
            "keep": keep,
        }

    def _written(self, record: OpRecord, slot: int) -> int:
        """Return the schema position of the argument through which an op writes a storage."""
        traits = traits_of(record.func)
        for position in traits.writes:
            tree = record.args[position] if position < len(record.args) else None
            if type(tree) is Arg and tree.slot == slot:
                return position
        names = [argument.name for argument in record.func._schema.arguments]
        for name, tree in record.kwargs:
            if name in traits.keyword_writes and type(tree) is Arg and tree.slot == slot:
                return names.index(name)
        raise Unsupported(f"{record.func} writes into a list of tensors")

    def _pack(self, pack: Pack) -> tuple[int, int, bool, bool, int]:
        return pack.at, self._arg(pack.arg), pack.dropped, pack.stays, pack.slots

    def _group(self, group: Group[Key]) -> Described:
        number = self._number
        return {
            "sources": [number(key) for key in group.sources],
            "cells": [number(key) for key in group.cells],
            "makes": [number(key) for key in group.makes],
            "steps": [
                (step.op, [number(k) for k in step.copies], [number(k) for k in step.frees])
                for step in group.steps
            ],
        }
