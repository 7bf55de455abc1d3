"""Which random ops need a generator state of their own to be replayed. Pure; no torch.

Used by the replay engine on a run and by the simulator on a profile, as `slicing` is. On the CPU a
state takes thousands of bytes (`STATE_BYTES`), often more than the mask that is made from it. Ops
that draw in turn share one: where the op whose draw came right before is replayed in the same
group, its replay leaves the generator as the forward did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

STATE_BYTES = 5056
"""A state of torch's CPU generator (mt19937): `torch.default_generator.get_state().nbytes`."""


def held_states(
    groups: Iterable[Iterable[int]], previous: Mapping[int, int]
) -> dict[int, list[int]]:
    """Return, by random op, the groups that need the state it drew from in the forward.

    Args:
        groups: the random ops of each group.
        previous: the op that drew right before, on the same generator; ops before which someone
            else may have drawn are left out.

    >>> held_states([(1, 2, 4), (4,)], {2: 1, 3: 2, 4: 3})
    {1: [0], 4: [0, 1]}
    """
    found: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        ops = frozenset(group)
        for op in sorted(ops):
            if previous.get(op) not in ops:
                found.setdefault(op, []).append(number)
    return found
