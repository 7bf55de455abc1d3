"""The generator states that a span's replays need, and what drawing takes in forward and replay.

GENERATOR STATE. A replayed random op needs the state from which it drew, unless the op that drew
right before it is replayed in the same group. States are held from the close of the span until the
last group that draws from them has run. To look at a state, in forward and in replay, takes a copy
of it for a moment. Mirrors `planner.replay.generators`; called by `planner.graph.effect`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.replay.held_states import STATE_BYTES, held_states
from planner.replay.slicing import Group


@dataclass(frozen=True, slots=True)
class Draw:
    """One random op in one group's replay.

    Attributes:
        continues: it draws on where another op of the group stopped.
        continued: another op of the group draws on where it stops.
    """

    continues: bool
    continued: bool


NO_DRAWS: Mapping[int, Draw] = {}


@dataclass(frozen=True, slots=True)
class Draws:
    """The random ops of one span; ops are numbered from its start.

    Attributes:
        looked_at: those whose generator the engine looks at when they run in the forward: all, as
            a run that is recorded does not know yet which are replayed.
        held: by op, the groups that need the state it drew from.
        groups: by group, its random ops.
    """

    looked_at: Sequence[int]
    held: Mapping[int, Sequence[int]]
    groups: Sequence[Mapping[int, Draw]]


def draws_of(random: Sequence[int], groups: Sequence[Group[int]], counted: bool) -> Draws:
    """Return what is drawn again.

    Args:
        random: the span's random ops in order; they are taken to use one generator.
        groups: its replay programs.
        counted: whether states are memory of the device, as they are on the CPU.
    """
    if not counted or not random:
        return Draws((), {}, [NO_DRAWS] * len(groups))
    drawing = frozenset(random)
    ops = [[s.op for s in group.steps if s.op in drawing] for group in groups]
    previous = {after: before for before, after in pairwise(random)}
    return Draws(
        random,
        held_states(ops, previous),
        [_of_group(group, previous) for group in ops],
    )


def _of_group(ops: Sequence[int], previous: Mapping[int, int]) -> Mapping[int, Draw]:
    own = frozenset(ops)
    on = {op: previous[op] for op in ops if previous.get(op) in own}
    continued = frozenset(on.values())
    return {op: Draw(op in on, op in continued) for op in ops}


def drawing_bytes(draw: Draw, workspace_bytes: int) -> int:
    """Return what a replayed random op takes at most beside its results."""
    return STATE_BYTES + max(workspace_bytes, STATE_BYTES if draw.continued else 0)
