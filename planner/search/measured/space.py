"""Plans as points: a keep level for every block, a state for every edge between two blocks.

Used by the measured search. A point is a dict of small parameters, so that a search that knows
nothing of graphs (Optuna's samplers) can move in it; `points` turns points into spans
and back. Equal blocks share their levels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

APART = "apart"
"""State of an edge: segments end there at the latest, and what crosses it stays."""
JOINED = "joined"
"""State of an edge: blocks on both sides are one segment, and what crosses it is dropped."""
STATES = (APART, JOINED)
"""States of an edge. A space may have more: `cut d` is joined, and the replay is cut there."""

Slot = tuple[int, int]
"""A value of a block: the op that makes it, from the block's start, and which output it is."""

Point = Mapping[str, Any]
"""By parameter: a level (an index into the levels of the block's kind) or a state."""


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """What a block gives up.

    Attributes:
        freed_bytes: bytes of it; levels are in this order.
        drop: the saved values that it gives up.
        hold: unsaved values that stay to shorten its replay.
    """

    freed_bytes: int
    drop: tuple[Slot, ...] = ()
    hold: tuple[Slot, ...] = ()


@dataclass(frozen=True)
class Space:
    """All points of one graph.

    Attributes:
        edges: positions e_0 < ... < e_n; block b is the ops [e_b, e_b+1).
        kinds: for each block, a number that equal blocks share.
        levels: for each kind, its levels, the one that gives up least first.
        names: for each block, the unit at its start.
        states: what an inner edge can be.
    """

    edges: tuple[int, ...]
    kinds: tuple[int, ...]
    levels: tuple[tuple[Level, ...], ...]
    names: tuple[str, ...]
    states: tuple[str, ...] = STATES

    def __len__(self) -> int:
        return len(self.kinds)

    def level_key(self, block: int) -> str:
        """Return the name of the parameter that is a block's level."""
        return f"level {block:03} {self.names[block]}"

    def edge_key(self, block: int) -> str:
        """Return the name of the parameter that is the state of the edge before a block."""
        return f"edge {block:03} {self.names[block]}"

    @cached_property
    def parameters(self) -> dict[str, Sequence[Any]]:
        """What each parameter can be, in forward order; those without a choice are left out."""
        found: dict[str, Sequence[Any]] = {}
        for block, kind in enumerate(self.kinds):
            if block:
                found[self.edge_key(block)] = self.states
            if len(self.levels[kind]) > 1:
                found[self.level_key(block)] = range(len(self.levels[kind]))
        return found

    @cached_property
    def alike(self) -> dict[str, tuple[str, ...]]:
        """For each parameter, those that mean the same at an equal place; itself among them."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for block, kind in enumerate(self.kinds):
            groups.setdefault(("level", kind), []).append(self.level_key(block))
            if block:
                pair = ("edge", self.kinds[block - 1], kind)
                groups.setdefault(pair, []).append(self.edge_key(block))
        known = self.parameters
        return {k: tuple(group) for group in groups.values() for k in group if k in known}

    def to_dict(self) -> dict[str, Any]:
        """Return the space as plain lists, for a study that others join."""
        levels = [
            [[level.freed_bytes, level.drop, level.hold] for level in row] for row in self.levels
        ]
        return {
            "edges": self.edges,
            "kinds": self.kinds,
            "levels": levels,
            "names": self.names,
            "states": self.states,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Space:
        """Read what `to_dict` returned, after a way through JSON."""
        levels = tuple(
            tuple(Level(size, _slots(drop), _slots(hold)) for size, drop, hold in row)
            for row in fields["levels"]
        )
        return cls(
            tuple(fields["edges"]),
            tuple(fields["kinds"]),
            levels,
            tuple(fields["names"]),
            tuple(fields["states"]),
        )


def _slots(rows: Sequence[Sequence[int]]) -> tuple[Slot, ...]:
    return tuple((int(op), int(output)) for op, output in rows)
