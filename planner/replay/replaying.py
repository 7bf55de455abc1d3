"""Runs the ops of a replay group again, on held values, freeing as it goes.

Called by a segment's state when backward needs a dropped value, by the audit, and by an open tape
when a gradient is asked for inside a segment. All of them call it below autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from planner.replay.flow import Arg, Key
from planner.replay.generators import DrawsAgain, GeneratorStates
from planner.replay.record import Call, OpRecord
from planner.replay.slicing import Group
from planner.replay.surroundings import run_chosen
from planner.replay.traits import Random, generator_of
from planner.replay.trees import build_tree, tensors_in
from planner.replay.views import copy_storage, rebuild, rebuild_view

Env = dict[Key, torch.Tensor]
"""The tensor that holds each value while a group runs."""


@dataclass(slots=True)
class ReplayCount:
    """How many ops were replayed; one for all segments of an applied plan."""

    ops: int = 0


@dataclass(slots=True)
class StepValues:
    """What one run of a segment had that its program does not know, by op number.

    Attributes:
        generator_states: the states that random ops drew from.
        calls: ops with numbers or sizes of this step's own (`x * self.alpha`).
        resized: whether tensors have other geometries than recorded, so that the tensor that holds
            a value is not the view that an op read, even where it was when recorded.
    """

    generator_states: GeneratorStates = field(default_factory=GeneratorStates)
    calls: dict[int, Call] = field(default_factory=dict)
    resized: bool = False


def random_ops(group: Group[Key], records: Sequence[OpRecord]) -> list[int]:
    """Return the ops of a group that draw."""
    return [step.op for step in group.steps if records[step.op].random]


def replay_group(
    group: Group[Key],
    records: Sequence[OpRecord],
    env: Env,
    values: StepValues,
    count: ReplayCount,
    release: Callable[[Key], None] | None = None,
) -> None:
    """Run a group's ops on `env`, which holds its sources and cells, and then what it makes.

    Args:
        values: what this run of the segment had of its own.
        count: where replayed ops are counted.
        release: called with each source and cell that the group needs no more.
    """
    borrowed = {*group.sources, *group.cells} if release is not None else ()
    drawing = values.generator_states.replay(random_ops(group, records))
    for step in group.steps:
        record = records[step.op]
        originals = {key: env[key] for key in step.copies} if step.copies else None
        for key in step.copies:
            env[key] = copy_storage(env[key])
        if record.plain and not values.resized and step.op not in values.calls:
            out = _run_plain(record, env)
        else:
            out = _run(record, step.op, env, values, drawing)
        for old, new in record.writes:
            env[new] = env[old]
        if originals:
            env.update(originals)
        _enter(record, out, env)
        del out
        for key in step.frees:
            env.pop(key, None)
            if release is not None and key in borrowed:
                release(key)
    count.ops += len(group.steps)


def _run_plain(record: OpRecord, env: Env) -> Any:
    """Run an op whose arguments are tensors and constants only."""
    args = [
        (env[a.slot, a.version] if a.direct else rebuild(env[a.slot, a.version], a))
        if type(a) is Arg
        else a
        for a in record.args
    ]
    return record.call(*args)


def _run(record: OpRecord, number: int, env: Env, values: StepValues, drawing: DrawsAgain) -> Any:
    """Run an op with lists, keywords, a generator, choices or numbers of this step's own."""
    view = rebuild_view if values.resized else rebuild

    def tensor(arg: Arg) -> Any:
        return view(env[arg.key], arg)

    call = values.calls.get(number) or record.again
    func, args, kwargs = call or Call(record.func, record.args, record.kwargs)
    built = [build_tree(a, tensor) for a in args]
    named = {name: build_tree(a, tensor) for name, a in kwargs} if kwargs else {}

    def run() -> Any:
        return func(*built, **named)

    def draw() -> Any:
        return drawing.draw(number, _generator(record, built, named), run)

    again = draw if record.random else run
    return again() if record.choices is None else run_chosen(record.choices, again)


def _generator(record: OpRecord, args: list[Any], kwargs: dict[str, Any]) -> Random:
    where = record.generator
    if where is None:
        return generator_of(record.device)
    found: Random = args[where] if isinstance(where, int) else kwargs[where]
    return found


def _enter(record: OpRecord, out: Any, env: Env) -> None:
    """Put what an op made in its place."""
    if type(out) is torch.Tensor:
        if record.makes:
            env[record.makes[0]] = out
        return
    # Not strict: an op recorded under `no_grad` may return one more tensor now.
    for slot, made in zip(record.outs, tensors_in(out), strict=False):
        if slot >= 0:
            env[slot, 0] = made
