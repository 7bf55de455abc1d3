"""Names for segments, and runs of segments that are alike.

Models repeat their blocks, so a plan repeats its segments; a reader wants to see
``transformer.h.0 .. transformer.h.11 (12 alike)`` once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from planner.documents.plan import Boundary, Segment

_NUMBER = re.compile(r"(\d+)")


def unit_label(boundary: Boundary) -> str:
    """Return a unit's name with the call index where it is not the first.

    >>> unit_label(Boundary("", 0, "enter")), unit_label(Boundary("cell", 3, "exit"))
    ('.', 'cell (call 3)')
    """
    name = boundary.unit or "."
    return f"{name} (call {boundary.call})" if boundary.call else name


def segment_label(first: Segment, last: Segment | None = None) -> str:
    """Return the range of units from the start of one segment to the end of another.

    >>> segment_label(Segment(Boundary("a", 0, "enter"), Boundary("b", 0, "exit")))
    'a .. b'
    """
    start, end = first.start, (last or first).end
    opens = unit_label(start) if start.edge == "enter" else f"after {unit_label(start)}"
    closes = unit_label(end) if end.edge == "exit" else f"before {unit_label(end)}"
    return opens if opens == closes else f"{opens} .. {closes}"


def runs(segments: Iterable[Segment]) -> list[tuple[Segment, ...]]:
    """Return the segments in order, those next to each other and alike in one tuple."""
    found: list[list[Segment]] = []
    for segment in segments:
        if found and _joins(found[-1], segment):
            found[-1].append(segment)
        else:
            found.append([segment])
    return [tuple(run) for run in found]


def _joins(run: Sequence[Segment], segment: Segment) -> bool:
    # Against the first as well as the last: a run must count in one and the same place.
    return _alike(run[0], segment) and _alike(run[-1], segment)


def _alike(a: Segment, b: Segment) -> bool:
    return _traits(a) == _traits(b) and all(
        left.edge == right.edge and _differ_in_one_number(_counted(left), _counted(right))
        for left, right in ((a.start, b.start), (a.end, b.end))
    )


def _traits(segment: Segment) -> tuple[object, ...]:
    # Not the time: it is measured, so equal blocks differ a little.
    return (
        segment.runtime,
        len(segment.keep),
        tuple(cut.depth for cut in segment.cuts),
        segment.saved_bytes,
        segment.kept_bytes,
        segment.replayed_ops,
    )


def _counted(boundary: Boundary) -> str:
    return f"{boundary.unit}#{boundary.call}"


def _differ_in_one_number(a: str, b: str) -> bool:
    pairs = zip_longest(_NUMBER.split(a), _NUMBER.split(b), fillvalue="")
    different = [(left, right) for left, right in pairs if left != right]
    return len(different) <= 1 and all(
        left.isdigit() and right.isdigit() for left, right in different
    )
