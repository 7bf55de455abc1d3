"""A recorded segment, ready to be followed and replayed.

A `Program` is what is known of a segment from one run: its ops, what autograd packed and when,
which of it is dropped, and the groups of ops that make the dropped values again. Later runs of the
same segment are compared with it op by op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.replay.exposure import EXPOSED
from planner.replay.flow import Arg, Key
from planner.replay.record import OpRecord
from planner.replay.slicing import Group, slice_segment


class Pack(NamedTuple):
    """One tensor that autograd packed: before op number `at`, this view; dropped or not.

    `slots` is the number of storages known before it; with `stays`, any tensor in this place is
    kept by autograd, so that it need not be compared.
    """

    at: int
    arg: Arg
    dropped: bool
    slots: int
    stays: bool


class PathStep(NamedTuple):
    """A record, and whether following it takes more than running the op (`busy`)."""

    record: OpRecord
    busy: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A recorded segment.

    Attributes:
        records: its ops in order.
        packs: what autograd packed, in order.
        groups: the replay programs.
        owner: group number by value.
        sources: held values that some group reads.
        source_uses: how many groups read each source.
        cell_uses: how many groups read each value that another group delivers.
        dropped: how many packs dropped each value.
        replayed: numbers of ops that some group runs.
        draws: those of them that draw: they need the generator's state.
        statistics: sources that a kernel may change without declaring it.
        path: the records, each with whether a followed run does more for it than run it and
            enter its one result.
        exposed: slots of memory that arrays share, see `exposure`.
        resumed: whether its beginning was followed, not recorded: what that made counts as written
            by unknown code, so that what is read of it later stays in memory.
        copied: op numbers before which an outside value is copied since the op overwrites it,
            with the values to copy.
    """

    records: tuple[OpRecord, ...]
    packs: tuple[Pack, ...]
    groups: tuple[Group[Key], ...]
    owner: dict[Key, int]
    sources: tuple[Key, ...]
    source_uses: dict[Key, int]
    cell_uses: dict[Key, int]
    dropped: dict[Key, int]
    replayed: frozenset[int]
    draws: frozenset[int]
    statistics: tuple[Key, ...]
    copied: dict[int, tuple[Key, ...]]
    path: tuple[PathStep, ...]
    exposed: frozenset[int]
    resumed: bool

    @property
    def drops(self) -> bool:
        """Whether anything is dropped at all."""
        return bool(self.dropped)


def compile_program(
    records: Sequence[OpRecord],
    packs: Sequence[Pack],
    held: frozenset[Key],
    cuts: Sequence[tuple[int, int]],
    resumed: bool = False,
) -> Program:
    """Return the program of a finished recording.

    Args:
        resumed: see `Program`.
        held: values made inside that stay in memory and may serve as sources.
        cuts: (op number, depth) pairs, see `slice_segment`.
    """
    dropped: dict[Key, int] = {}
    for pack in packs:
        if pack.dropped:
            dropped[pack.arg.key] = dropped.get(pack.arg.key, 0) + 1
    last = {pack.arg.key: pack.at for pack in packs if pack.dropped}
    slices = slice_segment([r.flow_op() for r in records], dropped, held, cuts, last)
    replayed = frozenset(step.op for group in slices.groups for step in group.steps)
    sources = slices.sources
    draws = frozenset(number for number in replayed if records[number].random)
    copied = _copies(records, frozenset(sources))
    return Program(
        tuple(records),
        tuple(packs),
        slices.groups,
        slices.owner,
        sources,
        _count(key for group in slices.groups for key in group.sources),
        _count(key for group in slices.groups for key in group.cells),
        dropped,
        replayed,
        draws,
        tuple(k for number in replayed for k in records[number].statistics if k in sources),
        copied,
        tuple(PathStep(r, _is_busy(r) or n in draws or n in copied) for n, r in enumerate(records)),
        frozenset(slot for r in records if r.func is EXPOSED for slot in r.touched),
        resumed,
    )


def _is_busy(record: OpRecord) -> bool:
    one_result = record.makes and len(record.outs) == 1 and not record.many_outs
    more = record.outside_writes or record.keep or record.hidden or record.again
    return not one_result or bool(more)


def _count(keys: object) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for key in keys:  # type: ignore[attr-defined]
        found[key] = found.get(key, 0) + 1
    return found


def _copies(records: Sequence[OpRecord], sources: frozenset[Key]) -> dict[int, tuple[Key, ...]]:
    found: dict[int, tuple[Key, ...]] = {}
    for number, record in enumerate(records):
        over = (*record.overwrites, *(old for old, _ in record.writes))
        keys = tuple(key for key in over if key in sources)
        if keys:
            found[number] = keys
    return found
