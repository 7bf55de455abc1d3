"""Op times from a run into a profile; the same op of equal blocks gets one time.

Every block runs in a forward anyway, so all are timed, and a forward of n equal blocks is n samples
of each op in them: the median of those is steadier than any one, and equal blocks stay equal for
the search, which solves them once. Pure; used by `planner.planning`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from statistics import median_low

from planner.documents import Op, Profile
from planner.profiler.timing import OpTimer


def with_op_times(profile: Profile, times_ns: Mapping[int, int]) -> Profile:
    """Return a profile with measured times; ops without one keep their estimate in proportion.

    Args:
        profile: with estimated times.
        times_ns: by op.
    """
    pooled = _pooled(profile, times_ns)
    estimated = sum(profile.ops[i].time_ns for i in pooled)
    factor = sum(pooled.values()) / estimated if estimated else 1.0
    ops = tuple(
        replace(op, time_ns=pooled[i] if i in pooled else int(op.time_ns * factor))
        for i, op in enumerate(profile.ops)
    )
    return replace(
        profile,
        ops=ops,
        step_time_ns=sum(op.time_ns for op in ops),
        forward_time_ns=sum(op.time_ns for op in ops if op.phase == "forward"),
    )


def with_times(profile: Profile, timer: OpTimer) -> Profile:
    """Return a profile with the times of the ops that ran in the same order from the start.

    Ops beyond, in backward, where replays stand between them, keep their estimate in proportion.
    """
    times = timer.times_ns()
    same: dict[int, int] = {}
    for index, (op, name) in enumerate(zip(profile.ops, timer.names, strict=False)):
        if op.name != name or op.phase == "backward":
            break
        same[index] = times[index]
    return with_op_times(profile, same)


def _pooled(profile: Profile, times_ns: Mapping[int, int]) -> dict[int, int]:
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for i in times_ns:
        alike[_kind(profile, i, profile.ops[i])].append(i)
    middle = {kind: median_low([times_ns[i] for i in ops]) for kind, ops in alike.items()}
    return {i: middle[kind] for kind, ops in alike.items() for i in ops}


def _kind(profile: Profile, index: int, op: Op) -> Hashable:
    """What ops of equal blocks share; an op of backward, which has no unit, is alone."""
    if op.phase != "forward" or op.unit < 0:
        return index
    parts = profile.units[op.unit].name.split(".")
    place = tuple("#" if part.isdigit() else part for part in parts)
    sizes = (_sizes(profile, op.inputs), _sizes(profile, op.outputs))
    return op.name, place, op.flops, sizes


def _sizes(profile: Profile, values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(profile.storages[profile.values[value].storage].bytes for value in values)
