"""`find_knee`: the budget below which each MiB less costs much more than above."""

from __future__ import annotations

from collections.abc import Sequence

from planner.documents.frontier import FrontierPoint, Knee

LEAST_BEND = 1.5
"""A curve whose slope below its knee is less than this many times the slope above has no knee."""


def find_knee(points: Sequence[FrontierPoint]) -> Knee | None:
    """Return the point farthest below the line from the first point to the last.

    Both axes are scaled to 1 first (Satopaa, Albrecht, Irwin and Raghavan 2011, "Finding a
    'Kneedle' in a Haystack"). None for fewer than three points, or where the curve costs less than
    `LEAST_BEND` times more below than above.
    """
    if len(points) < 3:
        return None
    low, high = points[0], points[-1]
    width = high.peak_bytes - low.peak_bytes
    height = low.overhead_ratio - high.overhead_ratio
    if width <= 0 or height <= 0:
        return None

    def below_line(point: FrontierPoint) -> float:
        across = (point.peak_bytes - low.peak_bytes) / width
        return 1 - across - (point.overhead_ratio - high.overhead_ratio) / height

    at = max(points[1:-1], key=below_line)
    knee = Knee(at.peak_bytes, at.overhead_ratio, _slope(low, at), _slope(at, high))
    return knee if below_line(at) > 0 and knee.times_steeper >= LEAST_BEND else None


def _slope(low: FrontierPoint, high: FrontierPoint) -> float:
    mib = (high.peak_bytes - low.peak_bytes) / 1024**2
    return (low.overhead_ratio - high.overhead_ratio) / mib if mib > 0 else 0.0
