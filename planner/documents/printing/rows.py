"""Segments of a plan as rows of a table, equal blocks in one row. Called by the reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.documents.plan import Boundary, Segment
from planner.documents.printing.alike import joined, shape_of
from planner.documents.printing.segments import unit_label
from planner.units import MIB


@dataclass(frozen=True, slots=True)
class Row:
    """Segments that are alike but for their layer.

    Attributes:
        label: the units they cover.
        segments: they, in forward order.
        first: index of the first of them in the plan.
    """

    label: str
    segments: tuple[Segment, ...]
    first: int

    @property
    def saved_bytes(self) -> int:
        """What the plain step saves there."""
        return sum(s.saved_bytes for s in self.segments)

    @property
    def kept_bytes(self) -> int:
        """What of it is kept."""
        return sum(s.kept_bytes for s in self.segments)

    @property
    def given_up_bytes(self) -> int:
        """What of it is dropped and recomputed."""
        return max(0, self.saved_bytes - self.kept_bytes)

    @property
    def replayed_ops(self) -> int:
        """Number of ops replayed."""
        return sum(s.replayed_ops for s in self.segments)

    @property
    def recompute_ns(self) -> int:
        """Time of the replays."""
        return sum(s.recompute_ns for s in self.segments)

    @property
    def ns_per_mib(self) -> float:
        """Recompute time per MiB dropped."""
        given_up = self.given_up_bytes
        return self.recompute_ns / (given_up / MIB) if given_up else 0.0


def rows_of(segments: Sequence[Segment]) -> list[Row]:
    """Return the rows of a plan's segments, in the order of each row's first segment."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, segment in enumerate(segments):
        groups.setdefault(_traits(segment), []).append(index)
    return [
        Row(
            joined([short_label(segments[i]) for i in members]),
            tuple(segments[i] for i in members),
            members[0],
        )
        for members in groups.values()
    ]


def _traits(segment: Segment) -> tuple[object, ...]:
    # Not the time: it is measured, so equal blocks differ a little.
    return (
        shape_of(short_label(segment)),
        segment.runtime,
        tuple(map(shape_of, segment.keep)),
        tuple((shape_of(cut.at), cut.depth) for cut in segment.cuts),
        segment.saved_bytes,
        segment.kept_bytes,
        segment.replayed_ops,
    )


def short_label(segment: Segment) -> str:
    """Return where a segment opens and closes, naming what both ends share once.

    >>> ends = Boundary("h.0.ln", 0, "enter"), Boundary("h.0.mlp.fc", 0, "exit")
    >>> short_label(Segment(*ends))
    'h.0: ln .. mlp.fc'
    """
    common = segment.unit
    opens = _end(segment.start, common, "enter", "after ")
    closes = _end(segment.end, common, "exit", "before ")
    inside = [part for part in (opens, closes) if part]
    if not inside:
        return unit_label(segment.start)
    text = inside[0] if opens == closes else f"{opens or 'start'} .. {closes or 'end'}"
    return f"{common}: {text}" if common else text


def _end(boundary: Boundary, common: str, usual: str, otherwise: str) -> str:
    """One end within the common unit; empty where it is that unit's own."""
    label = unit_label(boundary)
    if boundary.unit == common:
        label = "" if boundary.edge == usual and not boundary.call else label
    elif common:
        label = label[len(common) + 1 :]
    return label if not label or boundary.edge == usual else otherwise + label


def totals(rows: Iterable[Row]) -> Row:
    """Return all rows as one."""
    return Row("total", tuple(s for row in rows for s in row.segments), 0)
