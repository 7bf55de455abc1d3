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
    where = unit_at(graph, result.peak_op)
    live = sum(held.values())
    # What the plan dropped is not live; never count more than there is.
    loss = min(_loss_bytes(graph, result.peak_op), result.peak_bytes - live)
    if loss:
        held["logits and loss"] = loss
    rest = result.peak_bytes - live - loss
    if rest > 0:
        held[f"working set of {where}" if where else "saved tensors"] = rest
    return tuple(sorted(held.items(), key=lambda row: (-row[1], row[0])))


def unit_at(graph: Graph, op: int) -> str:
    """Return the unit that runs at an op, in forward or, by what it unpacks, in backward."""
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
    """Bytes live at an op that the model's head, the loss or their backward made."""
    profile = graph.profile
    start = _head_start(profile)
    body = [t.unpacked_at for t in profile.saved if t.packed_at <= start and t.unpacked_at >= 0]
    stop = min(body, default=graph.n_ops)  # here the backward of what comes before begins
    return sum(
        s.bytes
        for s in profile.storages
        if s.category == "activation" and start <= s.birth < stop and s.birth <= op <= s.death
    )


def _head_start(profile: Profile) -> int:
    """First op of the last part of the model; a wrapper around one part is looked into."""
    units = profile.units
    outer = next((i for i, u in enumerate(units) if u.parent < 0), None)
    while outer is not None:
        parts = [i for i, u in enumerate(units) if u.parent == outer and u.enter < u.exit]
        if len(parts) != 1:
            return units[parts[-1]].enter if parts else units[outer].exit
        outer = parts[0]
    return len(profile.ops)
