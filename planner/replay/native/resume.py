"""Hands a run of the C++ core over to the Python path, in the middle of a segment."""

from __future__ import annotations

from typing import Any

import torch

from planner.replay.content import sample
from planner.replay.follower import Follower
from planner.replay.matching import number
from planner.replay.native.describe import Numbering
from planner.replay.program import Program
from planner.replay.recipe import Recipe
from planner.replay.record import Call, OpRecord
from planner.replay.run import Kept, SegmentRun
from planner.replay.state import SegmentState
from planner.replay.surroundings import Surroundings


class PythonState:
    """Serves the placeholders that the core had made before a run was handed over."""

    def __init__(self, state: SegmentState, program: Program) -> None:
        self._state = state
        self._args = [pack.arg for pack in program.packs]

    def value(self, pack: int) -> torch.Tensor:
        """Return the tensor that was dropped as pack number `pack`."""
        return self._state.value(self._args[pack])

    def forget(self, pack: int) -> None:
        """A placeholder of this pack is gone."""
        self._state.forget(self._args[pack].key)


def resume(
    recipe: Recipe,
    program: Program,
    numbering: Numbering,
    exported: dict[str, Any],
    surroundings: Surroundings,
) -> tuple[SegmentRun, Follower]:
    """Return the run, and a follower that goes on where the core stopped.

    Args:
        program: what the core followed.
        exported: what it knows (`Run.export`).
        surroundings: those in which the segment was opened.
    """
    run = SegmentRun(recipe)
    run.state.surroundings = surroundings
    _fill_flow(run, program, numbering, exported)
    values = numbering.values
    for value, tensor, version in exported["kept"]:
        run.kept[values[value]] = Kept(tensor, version)
    for ordinal, tensor in exported["copies"]:
        run.copies[numbering.outside[ordinal]] = tensor
    for value, count in exported["placeholders"]:
        run.state.placeholders[values[value]] = count
    step_values = run.state.step_values
    step_values.generator_states.adopt(dict(exported["draws"]))
    for at, numbers in exported["calls"]:
        step_values.calls[at] = _call(program.records[at], dict(numbers))
    follower = Follower(run, program)
    follower.at, follower.packed = exported["at"], exported["packed"]
    return run, follower


def _fill_flow(
    run: SegmentRun, program: Program, numbering: Numbering, exported: dict[str, Any]
) -> None:
    flow = run.flow
    flow.pins.extend(exported["pins"])
    flow.base.extend(exported["base"])
    flow.known.update((address, slot) for slot, address in enumerate(exported["pins"]))
    flow.storages.update(exported["storages"])
    for ordinal, tensor, version, words in exported["outside"]:
        key = numbering.outside[ordinal]
        flow.outside[key] = (tensor, version)
        if key in program.source_uses:
            taken = sample(tensor, whole=False)
            if taken is not None and words is not None:
                value = words[0] if len(words) == 1 else hash(words)
                taken = taken._replace(value=value)
            run.samples[key] = taken


def _call(record: OpRecord, numbers: dict[int, Any]) -> Call:
    """Return an op's call with the numbers of this step."""
    names = [argument.name for argument in record.func._schema.arguments]
    return Call(
        record.func,
        tuple(number(w, numbers.get(at, w)) for at, w in enumerate(record.args)),
        tuple((name, number(w, numbers.get(names.index(name), w))) for name, w in record.kwargs),
    )
