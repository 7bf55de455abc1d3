"""What is live at the smallest peak, in words that say what would lower it."""

from __future__ import annotations

from collections.abc import Sequence

from planner.documents.profile import Profile
from planner.graph.model import Graph
from planner.graph.simulate import simulate
from planner.graph.span import Span

_LABELS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "input": "inputs",
}


def holders(graph: Graph, spans: Sequence[Span]) -> tuple[tuple[str, int], ...]:
    """Return what is live at the peak under `spans` as (label, bytes), largest first."""
    result = simulate(graph, spans, detail=True)
    held: dict[str, int] = {}
    for category, size in result.holders:
        label = _LABELS.get(category)
        if label is not None:
            held[label] = held.get(label, 0) + size
    where = _unit_at(graph, result.peak_op)
    live = sum(held.values())
    loss = _loss_bytes(graph, result.peak_op)
    if loss:
        held["logits and loss"] = loss
    rest = result.peak_bytes - live - loss
    if rest > 0:
        held[f"working set of {where}" if where else "working set and saved tensors"] = rest
    return tuple(sorted(held.items(), key=lambda row: (-row[1], row[0])))


def _unit_at(graph: Graph, op: int) -> str:
    """The unit that runs at an op, in forward or, by what it unpacks, in backward."""
    profile = graph.profile
    if op < graph.forward_stop:
        return _name(profile, profile.ops[op].unit) if op < graph.n_ops else ""
    near = [t for t in profile.saved if 0 <= t.unpacked_at <= op]
    if not near:
        return ""
    last = max(near, key=lambda t: (t.unpacked_at, t.packed_at))
    packer = min(last.packed_at, graph.n_ops - 1)
    return _name(profile, profile.ops[packer].unit)


def _name(profile: Profile, unit: int) -> str:
    return profile.units[unit].name if unit >= 0 else ""


def _loss_bytes(graph: Graph, op: int) -> int:
    """Bytes live at an op that were made after the model's last call, before backward ends."""
    profile = graph.profile
    end = max((u.exit for u in profile.units if u.parent < 0), default=0)
    return sum(
        s.bytes
        for s in profile.storages
        if s.category == "activation"
        and end <= s.birth < graph.forward_stop
        and s.birth <= op <= s.death
    )
