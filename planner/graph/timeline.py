"""The live bytes of a step by category, op by op, plain and under spans.

The same play as `planner.graph.simulate`, with the parts of the sum kept apart. A storage that is
given up counts as temporary while it lives its short first life; whatever the spans bring back is
replayed values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.graph.effect import effects_of
from planner.graph.live_bytes import KINDS, Holding, Line
from planner.graph.model import Graph, Ints
from planner.graph.simulate import Player, check_spans, highest_line
from planner.graph.span import Span

_KIND_OF = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "input": "inputs",
}


def memory_line(graph: Graph, spans: Sequence[Span]) -> Line:
    """Return the live bytes by kind under `spans`; the plain step's for none.

    Raises:
        IllegalSpanError: as for `simulate`.
    """
    ordered = sorted(spans, key=lambda span: span.start)
    check_spans(graph, ordered)
    player = _Recorder(graph, [e for span in ordered for e in effects_of(graph, span)])
    player.play(detail=True)
    n_ops = graph.n_ops
    during = {kind: np.zeros(n_ops + 2, dtype=np.int64) for kind in KINDS}
    before = {kind: np.zeros(n_ops + 2, dtype=np.int64) for kind in KINDS}
    for storage, plain in enumerate(graph.profile.storages):
        end = min(player.ends.get(storage, plain.death), n_ops)
        if end < plain.birth:
            continue
        kind = _kind(graph, storage, player.ends)
        first = max(plain.birth, 0)
        during[kind][first] += plain.bytes
        during[kind][end + 1] -= plain.bytes
        # In the replay before op i: born before i and alive during i.
        late = min(plain.birth + 1, n_ops)
        if late <= end:
            before[kind][late] += plain.bytes
            before[kind][end + 1] -= plain.bytes
    return _line(during, before, player)


class _Recorder(Player):
    """A player that remembers when first lives end, and the totals."""

    ends: dict[int, int]
    live: Ints
    tops: dict[int, int]

    def change_first_lives(self, ends: dict[int, int]) -> None:
        super().change_first_lives(ends)
        self.ends = ends

    def tops_of_replays(self, live: Ints) -> dict[int, int]:
        self.live = live
        self.tops = super().tops_of_replays(live)
        return self.tops


def _kind(graph: Graph, storage: int, ends: dict[int, int]) -> str:
    plain = graph.profile.storages[storage]
    if plain.category in _KIND_OF:
        return _KIND_OF[plain.category]
    kept = graph.packs[storage] and ends.get(storage, plain.death) >= plain.death
    return "kept activations" if kept else "temporaries"


def _line(during: dict[str, Ints], before: dict[str, Ints], player: _Recorder) -> Line:
    n_ops = player.graph.n_ops
    replaying = [op for op, top in player.tops.items() if top > player.live[op]]
    rows = {}
    for kind in KINDS:
        row = np.cumsum(during[kind])[:n_ops]
        row[replaying] = np.cumsum(before[kind])[replaying]
        rows[kind] = row
    totals = highest_line(player.live, player.tops)
    rest = np.array(totals, dtype=np.int64) - sum(rows.values())
    rows["replayed values"] = rows["replayed values"] + rest
    peak = int(np.argmax(totals)) if totals else 0
    return Line(
        {kind: tuple(map(int, row)) for kind, row in rows.items()},
        totals,
        peak,
        holdings=_holdings(player, peak, peak in replaying, totals[peak]) if totals else (),
    )


def _holdings(
    player: _Recorder, peak_op: int, replaying: bool, peak_bytes: int
) -> tuple[Holding, ...]:
    """Return what is live at the peak; in a replay, a storage born at the op is not there yet."""
    graph, last = player.graph, peak_op - 1 if replaying else peak_op
    held: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    savers = _savers(graph)
    for storage, plain in enumerate(graph.profile.storages):
        end = player.ends.get(storage, plain.death)
        if not plain.bytes or plain.birth > last or end < peak_op:
            continue
        kind = _kind(graph, storage, player.ends)
        op = graph.profile.ops[plain.birth] if plain.birth >= 0 else None
        saver = savers.get(storage, -1) if kind == "kept activations" else -1
        maker = _unit_name(graph, op.unit) if op is not None else ""
        key = (kind, maker, op.name if op is not None else "", _unit_name(graph, saver))
        count, size = held.get(key, (0, 0))
        held[key] = (count + 1, size + plain.bytes)
    rest = peak_bytes - sum(size for _, size in held.values())
    found = [Holding(*key, count, size) for key, (count, size) in held.items()]
    if rest > 0:
        found.append(Holding("replayed values", "", "", "", 0, rest))
    return tuple(sorted(found, key=lambda held: (-held.bytes, held.kind, held.maker, held.op)))


def _savers(graph: Graph) -> dict[int, int]:
    """Return, by storage, the unit call in which autograd first saved it."""
    found: dict[int, int] = {}
    for saved in graph.profile.saved:
        at = min(saved.packed_at, graph.n_ops - 1)
        found.setdefault(graph.storage_of(saved.value), graph.profile.ops[at].unit)
    return found


def _unit_name(graph: Graph, unit: int) -> str:
    return graph.profile.units[unit].name if unit >= 0 else ""
