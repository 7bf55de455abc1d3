"""The memory of one replay program, step by step, apart from everything around it.

Called by `planner.graph.effect`. Each step first allocates copies of what its op would overwrite,
then all fresh outputs of the op; then it is measured; then it lets go of what it frees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.graph.draws import NO_DRAWS, Draw, drawing_bytes
from planner.replay.held_states import STATE_BYTES
from planner.replay.slicing import FlowOp, Group


@dataclass(frozen=True, slots=True)
class Played:
    """A program's own allocations.

    Attributes:
        highs: live bytes at each step over those at the start.
        net: live bytes after the last step over those at the start: what it delivers.
        used: by value from elsewhere (source or cell), the step after which it is let go.
    """

    highs: tuple[int, ...]
    net: int
    used: dict[int, int]


def play_group(
    group: Group[int],
    ops: Sequence[FlowOp[int]],
    size: Callable[[int], int],
    workspaces: Sequence[int],
    draws: Mapping[int, Draw] = NO_DRAWS,
) -> Played:
    """Play a group's program over the span's `ops`.

    Args:
        group: the program.
        ops: what each op of the span reads and makes.
        size: gives a value's storage in bytes.
        workspaces: bytes that each op of the span needs while it runs.
        draws: the group's random ops, where generator states count.
    """
    delivered = frozenset(group.makes)
    block_of: dict[int, int] = {}  # value -> block of fresh memory
    users: list[int] = []  # by block, values that still live in it
    level = 0
    highs: list[int] = []
    used: dict[int, int] = {}
    for number, step in enumerate(group.steps):
        op = ops[step.op]
        for old in step.copies:
            level += size(old)
        for key in op.makes:
            block_of[key] = len(users)
            users.append(1)
            level += size(key)
        for old, new in op.writes:
            if old in step.copies:
                block_of[new] = len(users)
                users.append(1)
            else:
                block_of[new] = block_of[old]
                users[block_of[old]] += 1
        draw = draws.get(step.op)
        inside = workspaces[step.op]
        highs.append(level + (inside if draw is None else drawing_bytes(draw, inside)))
        if draw is not None:
            level += STATE_BYTES * (draw.continued - draw.continues)
        for key in step.frees:
            block = block_of.get(key)
            if block is None:
                used[key] = number
                continue
            users[block] -= 1
            if not users[block] and key not in delivered:
                level -= size(key)
    return Played(tuple(highs), level, used)
