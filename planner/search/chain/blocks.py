"""Cut the forward of the first root call into blocks where little crosses, and find equal ones.

A block boundary is a legal position at which the bytes that later ops still need are fewest among
its neighbours: between transformer blocks only the residual stream crosses. Bytes that autograd
saves anyway count once; bytes that nobody saves count twice, since a segment that starts there
would have to hold them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from planner.graph.model import Graph, Ints
from planner.search.pins import Wishes

MOST_BLOCKS = 4_000
MOST_DENSE = 40
"""Up to so many legal positions, each is a block edge."""
MOST_EDGES = 24
"""Up to so many block edges, edges one op apart both stay."""
_PERSISTENT = frozenset({"parameter", "buffer", "input", "optimizer", "gradient"})


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks of the first root call.

    Attributes:
        edges: positions e_0 < e_1 < ... < e_n; block b is the ops [e_b, e_b+1).
        kinds: for each block, a number that equal blocks share.
        first_of: for each kind, the first block of that kind.
        marks: positions where a replay may be cut: the edges, and those that pins removed.
    """

    edges: tuple[int, ...]
    kinds: tuple[int, ...]
    first_of: tuple[int, ...]
    marks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.kinds)


def split(graph: Graph, wishes: Wishes | None = None, op_ns: Ints | None = None) -> Blocks:
    """Return the blocks of a graph; none when no module call ran.

    No block edge parts a value that must be dropped from its packs, and blocks with different
    wishes are different.

    Args:
        graph: the step.
        wishes: pins and exclusions; none by default.
        op_ns: the time of each op; by default as the profile has it.
    """
    edges = marks = _edges(graph, op_times_ns(graph) if op_ns is None else op_ns)
    wishes = wishes or Wishes()
    if wishes.forced:
        edges = _whole(graph, edges, wishes)
    known: dict[Hashable, int] = {}
    kinds: list[int] = []
    first_of: list[int] = []
    for block, signature in enumerate(_signatures(graph, edges)):
        signature = (signature, _wished(wishes, edges[block], edges[block + 1]))
        kind = known.setdefault(signature, len(known))
        kinds.append(kind)
        if kind == len(first_of):
            first_of.append(block)
    return Blocks(tuple(edges), tuple(kinds), tuple(first_of), tuple(marks))


def op_times_ns(graph: Graph) -> Ints:
    """Return the time of each op as the profile has it."""
    return np.array([op.time_ns for op in graph.profile.ops], dtype=np.int64)


def _whole(graph: Graph, edges: list[int], wishes: Wishes) -> list[int]:
    """Drop edges that stand between a value to drop and its last pack."""
    barred: set[int] = set()
    for op, stop in wishes.forced:
        for value in graph.outputs(op):
            packs = [t.packed_at for t in graph.saved_of(value)]
            if packs and max(packs) <= stop:
                barred.update(p for p in edges if op < p <= max(packs) and p < edges[-1])
    return [p for p in edges if p not in barred]


def _wished(wishes: Wishes, start: int, stop: int) -> Hashable:
    if wishes.plain():
        return ()
    return tuple(
        tuple(op - start for op in ops if start <= op < stop)
        for ops in (sorted(wishes.saved), [op for op, _ in wishes.forced], sorted(wishes.excluded))
    )


def crossing_bytes(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each position, the saved and the unsaved bytes that later forward ops need.

    Two int64 arrays of shape (n_ops + 2,). Parameters, inputs and what outlives forward anyway
    cross nowhere.
    """
    profile = graph.profile
    saved = np.zeros(graph.n_ops + 2, dtype=np.int64)
    unsaved = np.zeros(graph.n_ops + 2, dtype=np.int64)
    for storage, last in last_uses(graph).items():
        life = profile.storages[storage]
        if life.category in _PERSISTENT or life.birth < 0 or last <= life.birth:
            continue
        row = saved if graph.packs[storage] else unsaved
        row[life.birth + 1] += life.bytes
        row[last + 1] -= life.bytes
    return np.cumsum(saved), np.cumsum(unsaved)


def last_uses(graph: Graph) -> dict[int, int]:
    """Return, by storage, the last forward op that reads or packs it."""
    last: dict[int, int] = {}
    for index, op in enumerate(graph.profile.ops):
        if op.phase == "forward":
            for value in op.inputs:
                last[graph.storage_of(value)] = index
    for tensor in graph.profile.saved:
        storage = graph.storage_of(tensor.value)
        last[storage] = max(last.get(storage, -1), tensor.packed_at - 1)
    return last


def _edges(graph: Graph, op_ns: Ints) -> list[int]:
    """Block edges: all legal positions if there are few, else those where little crosses."""
    legal = [p for p in graph.legal_positions if p <= graph.n_ops]
    if len(legal) <= MOST_DENSE:
        return legal or [0]
    saved, unsaved = crossing_bytes(graph)
    weight = [int(saved[p] + 2 * unsaved[p]) for p in legal]
    inner = range(1, len(legal) - 1)
    chosen = _prominent([k for k in inner if _is_low(weight, k)], weight)
    if len(chosen) > MOST_EDGES:
        chosen = _spaced(op_ns, chosen, legal)
    step = 1 + len(chosen) // MOST_BLOCKS
    return [legal[0], *(legal[k] for k in chosen[::step]), legal[-1]]


def _is_low(weight: list[int], k: int) -> bool:
    """No more crosses than where something else crosses, on both sides."""
    return weight[k] <= min(_other(weight, k, -1), _other(weight, k, 1))


def _other(weight: list[int], at: int, way: int) -> int:
    """The next different weight in one direction; at the end, nothing is lower."""
    k = at
    while 0 <= k < len(weight) and weight[k] == weight[at]:
        k += way
    return weight[k] if 0 < k < len(weight) - 1 else weight[at]


def _prominent(chosen: list[int], weight: list[int]) -> list[int]:
    """Drop minima at which half as much again crosses as at both neighbouring minima."""
    return [
        k
        for before, k, after in zip([None, *chosen], chosen, [*chosen[1:], None], strict=False)
        if 2 * weight[k] <= 3 * max(weight[n] if n is not None else 0 for n in (before, after))
    ]


def _spaced(op_ns: Ints, chosen: list[int], legal: list[int]) -> list[int]:
    """Of two minima with one op between them, keep the one whose crossing value costs more time.

    What crosses a block edge stays, unless blocks are joined; so the dearer one stays.
    """
    kept: list[int] = []
    for k in chosen:
        before = kept[-1] if kept else None
        if before is None or legal[k] - legal[before] > 1:
            kept.append(k)
        elif op_ns[legal[k] - 1] > op_ns[legal[before] - 1]:
            kept[-1] = k
    return kept


def _signatures(graph: Graph, edges: list[int]) -> list[Hashable]:
    """What makes two blocks equal: ops, sizes, flow between them, what is saved where."""
    block_of = np.searchsorted(np.array(edges), np.arange(graph.n_ops + 2), side="right") - 1
    legal = frozenset(graph.legal_positions)
    return [
        _signature(graph, edges[b], edges[b + 1], b, block_of, legal) for b in range(len(edges) - 1)
    ]


def _signature(
    graph: Graph, start: int, stop: int, block: int, block_of: np.ndarray, legal: frozenset[int]
) -> Hashable:
    names: dict[int, Hashable] = {}
    rows: list[Hashable] = []
    for index in range(start, stop):
        op = graph.profile.ops[index]
        for value in op.inputs:
            if value not in names:
                names[value] = _outside(graph, value, block, block_of, len(names))
        for slot, value in enumerate(op.outputs):
            names[value] = (index - start, slot)
        rows.append(
            (
                op.name,
                bool(graph.flow(index).makes or graph.flow(index).writes),
                index in legal,
                tuple(names[v] for v in op.inputs),
                tuple(_made(graph, v, start, block, block_of) for v in op.outputs),
            )
        )
    return tuple(rows)


def _outside(graph: Graph, value: int, block: int, block_of: np.ndarray, number: int) -> Hashable:
    """A value from before the block: its number in order of sight, size, and where it is from."""
    storage = graph.profile.storages[graph.storage_of(value)]
    maker = graph.profile.values[value].op
    distance = min(2, block - int(block_of[maker])) if maker >= 0 else -1
    saved = bool(graph.packs[graph.storage_of(value)])
    return ("outside", number, storage.bytes, storage.category, distance, saved)


def _made(graph: Graph, value: int, start: int, block: int, block_of: np.ndarray) -> Hashable:
    """A value made in the block: its size, where it is packed, whether it is written later."""
    packs = []
    for tensor in graph.saved_of(value):
        distance = int(block_of[tensor.packed_at]) - block
        packs.append((distance, tensor.packed_at - start) if distance == 0 else min(2, distance))
    storage = graph.storage_of(value)
    written = graph.overwritten_at(value)
    birth = graph.profile.storages[storage].birth
    return (
        graph.storage_bytes(value),
        tuple(packs),
        graph.packs[storage],
        written - start if written >= 0 else -1,
        birth - start if birth >= 0 else None,
    )
