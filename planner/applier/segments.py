"""The segments of a plan by the unit edges at which they open and close, and their names."""

from __future__ import annotations

from collections.abc import Collection

from planner.documents import Segment


def segment_name(segment: Segment) -> str:
    """Return how messages name a segment: its unit, or its first and last."""
    start, end = segment.start.unit, segment.end.unit
    return start or "(model)" if start == end else f"{start or '(model)'} .. {end or '(model)'}"


def actions_of(
    segments: tuple[Segment, ...], left_out: Collection[int] = ()
) -> dict[tuple[str, str], tuple[tuple[int, bool, int], ...]]:
    """Return what happens at (unit, edge): (call, opens?, segment number), closings first."""
    found: dict[tuple[str, str], list[tuple[int, bool, int]]] = {}
    for number, segment in enumerate(segments):
        if segment.runtime != "replay" or number in left_out:
            continue
        for boundary, opens in ((segment.end, False), (segment.start, True)):
            entry = (boundary.call, opens, number)
            found.setdefault((boundary.unit, boundary.edge), []).append(entry)
    return {where: tuple(sorted(acts, key=lambda a: a[1])) for where, acts in found.items()}
