"""Which ops must run again, in what order, to make dropped values anew. Pure; no torch.

Called by the replay engine (on a recorded tape) and by the simulator (on a profile), so that the
prediction plays exactly the program that the real step runs.

A *value* is one version of one storage; any hashable key names it. Values come from outside, are
held from the forward (external or kept), or are dropped. A *group* is a program that makes a set
of dropped values when the first of them is needed. A segment without cuts is one group. With cuts
it is a tree: the group of a range that is cut makes only the values that its parts need at their
entries, and each part has a group of its own (recursively), which is how a long segment is
replayed in parts, as in nested checkpointing (Beaumont et al. 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FlowOp(Generic[K]):
    """One op as data flow: what it reads, what it makes in fresh storage, what it writes in place.

    `reads` includes the old version of every written storage; `writes` pairs (old, new).
    """

    reads: tuple[K, ...]
    makes: tuple[K, ...]
    writes: tuple[tuple[K, K], ...] = ()


@dataclass(frozen=True, slots=True)
class Step(Generic[K]):
    """Run op number `op` again.

    Before it, copy the storages of `copies` (old versions that the op would overwrite and that
    are still needed); after it, let go of `frees` (values this group does not use any more).
    """

    op: int
    copies: tuple[K, ...]
    frees: tuple[K, ...]


@dataclass(frozen=True, slots=True)
class Group(Generic[K]):
    """A replay program: reads `sources` (held) and `cells` (other groups'), delivers `makes`."""

    steps: tuple[Step[K], ...]
    sources: tuple[K, ...]
    cells: tuple[K, ...]
    makes: tuple[K, ...]


@dataclass(frozen=True, slots=True)
class Slices(Generic[K]):
    """The groups of one segment and, for each value that a group delivers, which group."""

    groups: tuple[Group[K], ...]
    owner: dict[K, int]

    @property
    def sources(self) -> tuple[K, ...]:
        """All held values that some group reads, in first-use order."""
        return tuple(dict.fromkeys(key for group in self.groups for key in group.sources))


def slice_segment(
    ops: Sequence[FlowOp[K]],
    wanted: Iterable[K],
    held: Collection[K],
    cuts: Sequence[tuple[int, int]] = (),
    packs: Mapping[K, int] | None = None,
) -> Slices[K]:
    """Return the groups that make the `wanted` values of one segment.

    Args:
        ops: the segment's ops in forward order.
        wanted: dropped values that backward will ask for; each is made by one of `ops`.
        held: values that stay in memory (kept). Values that no op makes are external and held.
        cuts: (position, depth) pairs; a cut at position p divides before `ops[p]`; depth 1 cuts
            the segment, depth 2 cuts its parts, and so on. A negative depth cuts likewise, and
            the part that ends there is whole: the group of the cut range delivers all of it.
        packs: where autograd last saved a wanted value: before the op of that number. What is
            saved beyond a cut is asked for before the part that makes it, and is delivered.

    Raises:
        KeyError: never for well-formed input; a wanted value that no op makes is ignored.
    """
    slicer = _Slicer(ops, held, packs or {})
    slicer.build(0, len(ops), 1, sorted(cuts), dict.fromkeys(wanted), frozenset())
    owner = {key: index for index, group in enumerate(slicer.groups) for key in group.makes}
    return Slices(tuple(slicer.groups), owner)


class _Slicer(Generic[K]):
    def __init__(
        self, ops: Sequence[FlowOp[K]], held: Collection[K], packs: Mapping[K, int]
    ) -> None:
        self.ops = ops
        self.held = held
        self.packs = packs
        self.groups: list[Group[K]] = []
        self.maker: dict[K, int] = {}
        for index, op in enumerate(ops):
            for key in op.makes:
                self.maker[key] = index
            for _, new in op.writes:
                self.maker[new] = index

    def build(
        self,
        start: int,
        stop: int,
        depth: int,
        cuts: Sequence[tuple[int, int]],
        wanted: dict[K, None],
        cells: frozenset[K],
    ) -> None:
        """Append the groups of the range [start, stop), outer groups first."""
        mine = {key: None for key in wanted if key not in cells and self._inside(key, start, stop)}
        if not mine:
            return
        edges = [p for p, d in cuts if abs(d) == depth and start < p < stop]
        deeper = [c for c in cuts if abs(c[1]) > depth and start < c[0] < stop]
        if not edges:
            if deeper:
                self.build(start, stop, depth + 1, deeper, mine, cells)
            else:
                self._add_group(mine, start, cells)
            return
        ranges = list(zip([start, *edges], [*edges, stop], strict=True))
        whole = [(low, high) for low, high in ranges if (high, -depth) in cuts]
        needs = self._entry_needs(ranges, start, mine, cells, whole)
        if needs:
            self._add_group(needs, start, cells)
        for low, high in ranges:
            self.build(low, high, depth + 1, deeper, mine, cells | needs.keys())

    def _entry_needs(
        self,
        ranges: list[tuple[int, int]],
        start: int,
        wanted: dict[K, None],
        cells: frozenset[K],
        whole: Collection[tuple[int, int]],
    ) -> dict[K, None]:
        """Values made inside the cut range that some later part reads at its entry, or saves.

        Later parts first: what they need is delivered to them, so the part that first made it
        has not to make it again, and needs nothing at its own entry on that account. All that
        the `whole` parts make is delivered likewise.
        """
        lows = [low for low, _ in ranges[1:]]
        needs = {k: None for k in wanted if any(self._saved_beyond(k, low) for low in lows)}
        for low, high in reversed(ranges):
            inside = (key for key in wanted if self._inside(key, low, high))
            part = {key: None for key in inside if key not in needs}
            if (low, high) in whole:
                needs |= part
            elif low > start:
                entry = self._slice(part, low, cells | needs.keys())[1]
                needs |= {k: None for k in entry if k not in cells and self._inside(k, start, low)}
        return needs

    def _saved_beyond(self, key: K, cut: int) -> bool:
        """Whether a value from before a cut is saved behind it.

        Right at the cut, either the op before has saved what it made, or the op behind saves
        what it is about to read.
        """
        last = self.packs.get(key, -1)
        if last > cut:
            return self.maker[key] < cut
        return last == cut < len(self.ops) and key in self.ops[cut].reads

    def _inside(self, key: K, start: int, stop: int) -> bool:
        return key not in self.held and start <= self.maker.get(key, -1) < stop

    def _slice(
        self, wanted: Iterable[K], start: int, cells: Collection[K]
    ) -> tuple[list[int], dict[K, None]]:
        """Ops at or after `start` that lead to `wanted`, and the values read from before them."""
        run: set[int] = set()
        entry: dict[K, None] = {}
        seen: set[K] = set()
        todo = list(wanted)
        while todo:
            key = todo.pop()
            if key in seen:
                continue
            seen.add(key)
            index = self.maker.get(key, -1)
            if key in self.held or key in cells or index < start:
                entry[key] = None
            elif index not in run:
                run.add(index)
                todo.extend(self.ops[index].reads)
        return sorted(run), entry

    def _add_group(self, wanted: dict[K, None], start: int, cells: frozenset[K]) -> None:
        order, entry = self._slice(wanted, start, cells)
        last = self._last_uses(order)
        kept = entry.keys() | wanted.keys()
        steps = tuple(
            Step(index, self._copies(index, last, kept), self._frees(index, last, wanted))
            for index in order
        )
        made = {k for i in order for k in (*self.ops[i].makes, *(n for _, n in self.ops[i].writes))}
        read = dict.fromkeys(k for i in order for k in self.ops[i].reads if k not in made)
        self.groups.append(
            Group(
                steps,
                tuple(k for k in read if k in self.held or k not in self.maker),
                tuple(k for k in read if k not in self.held and k in self.maker),
                tuple(wanted),
            )
        )

    def _last_uses(self, order: list[int]) -> dict[K, int]:
        last: dict[K, int] = {}
        for index in order:
            op = self.ops[index]
            for key in (*op.makes, *(new for _, new in op.writes), *op.reads):
                last[key] = index
        return last

    def _copies(self, index: int, last: dict[K, int], kept: Collection[K]) -> tuple[K, ...]:
        writes = self.ops[index].writes
        if not writes:
            return ()
        olds = (old for old, _ in writes)
        return tuple(old for old in olds if old in kept or last[old] > index)

    def _frees(self, index: int, last: dict[K, int], wanted: dict[K, None]) -> tuple[K, ...]:
        op = self.ops[index]
        touched = dict.fromkeys((*op.reads, *op.makes, *(new for _, new in op.writes)))
        return tuple(key for key in touched if last[key] == index and key not in wanted)
