"""What a step holds on one of N ranks that share parameters, gradients and optimizer state.

Pure: from the profile of the whole step to that of one rank, as fully sharded data parallelism
runs it (Zhao et al., "PyTorch FSDP", VLDB 2023; Rajbhandari et al., "ZeRO", stage 3, 2020):

SHARDS       parameters, gradients and optimizer state lie in N equal parts, one on each rank.
GATHERED     the whole parameters of a unit are there while it runs, in forward and again in
             backward, and those of the next unit too: they are fetched one ahead.
REDUCED      a unit's whole gradients are there until its backward is over, then a part of them.
UPDATE       the optimizer works on parts, so what it allocates is a part as well.

The units are the elements of module lists (a name that ends in a number, outermost first), and
whatever else reads parameters, alone. A replay counts as part of the backward of the unit that
asks first. Transfers are taken to be hidden behind computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.documents import Op, Profile, Storage
from planner.memory.peak import peak_of

_SPLIT = ("parameter", "gradient", "optimizer")
_WHOLE_BYTES = 64  # step counters and single numbers are on every rank


@dataclass(slots=True)
class _Gather:
    """One use of a unit's parameters: ops first..last of forward, asked..over of backward."""

    first: int
    last: int
    bytes: int
    asked: int = -1
    over: int = -1


def shard_profile(profile: Profile, shards: int) -> Profile:
    """Return the profile of one of `shards` ranks; the batch is that of one rank already.

    Raises:
        ValueError: fewer than one rank.
    """
    if shards < 1:
        raise ValueError(f"{shards} ranks")
    if shards == 1:
        return profile
    update = _backward_stop(profile)
    gathers = _gathers(profile, update)
    ops = tuple(_op(op, index >= update, shards) for index, op in enumerate(profile.ops))
    storages = [_storage(s, update, shards, gathers) for s in profile.storages]
    storages += _whole(profile, gathers, update)
    return replace(
        profile,
        step=replace(profile.step, shards=shards),
        ops=ops,
        storages=tuple(storages),
        plain_peak_bytes=peak_of(storages, len(ops)),
        step_time_ns=sum(op.time_ns for op in ops),
    )


def _backward_stop(profile: Profile) -> int:
    """The position after the last op of backward."""
    return max((i + 1 for i, op in enumerate(profile.ops) if op.phase == "backward"), default=0)


def _part(size: int, shards: int) -> int:
    return size if size <= _WHOLE_BYTES else -(-size // shards)


def _op(op: Op, is_update: bool, shards: int) -> Op:
    return replace(op, time_ns=-(-op.time_ns // shards)) if is_update else op  # UPDATE


def _storage(storage: Storage, update: int, shards: int, gathers: Sequence[_Gather]) -> Storage:
    if storage.category not in _SPLIT and storage.birth < update:
        return storage
    part = replace(storage, bytes=_part(storage.bytes, shards))
    if storage.category != "gradient" or not 0 <= storage.birth < update:
        return part
    over = _over(storage, gathers, update)  # REDUCED
    natural = max(over, storage.natural_death)
    return replace(part, birth=over, death=max(over, storage.death), natural_death=natural)


def _over(storage: Storage, gathers: Sequence[_Gather], update: int) -> int:
    """The last op of the unit's backward in which a gradient was made."""
    ends = (g.over for g in gathers if 0 <= g.asked <= storage.birth <= g.over)
    return min(ends, default=min(storage.birth, update))


def _whole(profile: Profile, gathers: Sequence[_Gather], update: int) -> Iterator[Storage]:
    """Whole parameters and whole gradients, while they are there."""
    for gather in gathers:  # GATHERED
        yield Storage(gather.bytes, "parameter", gather.first, gather.last, gather.last)
        if gather.asked >= 0:
            yield Storage(gather.bytes, "parameter", gather.asked, gather.over, gather.over)
    for storage in profile.storages:  # REDUCED
        if storage.category == "gradient" and 0 <= storage.birth < update:
            over = _over(storage, gathers, update)
            yield Storage(storage.bytes, "gradient", storage.birth, over, over)


def _gathers(profile: Profile, update: int) -> list[_Gather]:
    gathers = _in_forward(profile)
    _add_backward(profile, gathers, update)
    firsts = [gather.first for gather in gathers]
    for gather, before in zip(gathers[1:], firsts, strict=False):  # fetched one ahead
        gather.first = before
    later = sorted((g for g in gathers if g.asked >= 0), key=lambda g: g.asked)
    asked = [gather.asked for gather in later]
    for gather, before in zip(later[1:], asked, strict=False):
        gather.asked = before
    return gathers


def _in_forward(profile: Profile) -> list[_Gather]:
    """The calls of sharded units that read parameters, in the order in which they begin."""
    owners = [_owner(profile, index) for index in range(len(profile.units))]
    seen: dict[int, set[int]] = {}
    for op in profile.ops:
        if op.phase == "forward" and op.unit >= 0:
            read = {profile.values[value].storage for value in op.inputs}
            mine = {s for s in read if profile.storages[s].category == "parameter"}
            if mine:
                seen.setdefault(owners[op.unit], set()).update(mine)
    calls = ((profile.units[index], seen[index]) for index in sorted(seen))
    return [
        _Gather(u.enter, max(u.enter, u.exit - 1), sum(profile.storages[s].bytes for s in own))
        for u, own in calls
    ]


def _add_backward(profile: Profile, gathers: list[_Gather], update: int) -> None:
    """Fill in when backward asks for what was saved in each call, and when that is over."""
    for gather in gathers:
        asked = (
            tensor.unpacked_at
            for tensor in profile.saved
            if gather.first <= tensor.packed_at <= gather.last and tensor.unpacked_at >= 0
        )
        gather.asked = min(asked, default=-1)
    order = sorted((g for g in gathers if g.asked >= 0), key=lambda g: g.asked)
    for gather, after in zip(order, [*(g.asked for g in order[1:]), update], strict=True):
        gather.over = max(gather.asked, after - 1)


def _owner(profile: Profile, index: int) -> int:
    """The outermost call around this one that is an element of a module list, or itself."""
    owner = at = index
    while at >= 0:
        if profile.units[at].name.rpartition(".")[2].isdigit():
            owner = at
        at = profile.units[at].parent
    return owner
