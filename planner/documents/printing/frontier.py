"""A frontier for a terminal: a compact chart, the knee, and placements by hand. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.documents.frontier import Baseline, Frontier, FrontierPoint
from planner.documents.printing.grid import grid, printable
from planner.units import format_bytes, format_percent

WIDTH, HEIGHT = 60, 12
MOST_ROWS = 11


def frontier_text(frontier: Frontier) -> str:
    """Return a frontier as text, at most 100 columns wide."""
    ends = f"{format_bytes(frontier.floor_bytes)} to {format_bytes(frontier.plain_peak_bytes)}"
    title = f"Frontier of {frontier.model_class}: least overhead from {ends} (predicted)"
    parts = [
        [printable(title)],
        chart(frontier) if len(frontier.points) > 2 else [],
        [knee_sentence(frontier)],
        _points(frontier),
        _by_hand(frontier),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def knee_sentence(frontier: Frontier) -> str:
    """Return where the frontier bends, in a sentence."""
    knee = frontier.knee
    if knee is None:
        return "No knee: each MiB costs about the same everywhere."
    at = f"{format_bytes(knee.peak_bytes)} ({format_percent(knee.overhead_ratio)} overhead)"
    times = knee.times_steeper
    if times == float("inf"):
        return f"Knee at {at}: above it memory is free."
    return f"Knee at {at}: below it each MiB costs {times:.1f}x more than above."


def chart(frontier: Frontier) -> list[str]:
    """Return the frontier as lines of characters: `*` ours, `o` by hand, `K` the knee.

    Placements by hand that lie above the chart are left out of it.
    """
    points = frontier.points
    top = top_ratio(frontier)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    low, wide = frontier.floor_bytes, max(1, frontier.plain_peak_bytes - frontier.floor_bytes)

    def mark(peak_bytes: int, ratio: float, sign: str) -> None:
        across = round((peak_bytes - low) / wide * (WIDTH - 1))
        up = round(ratio / top * (HEIGHT - 1))
        if 0 <= across < WIDTH and 0 <= up < HEIGHT:
            cells[HEIGHT - 1 - up][across] = sign

    for baseline in frontier.baselines:
        mark(baseline.peak_bytes, baseline.overhead_ratio, "o")
    for point in points:
        mark(point.peak_bytes, point.overhead_ratio, "*")
    if frontier.knee:
        mark(frontier.knee.peak_bytes, frontier.knee.overhead_ratio, "K")
    return _framed(cells, top, frontier)


def top_ratio(frontier: Frontier) -> float:
    """Return the overhead at the top of a chart: all our points, and by hand up to twice that."""
    high = max((p.overhead_ratio for p in frontier.points), default=0.0)
    by_hand = max((b.overhead_ratio for b in frontier.baselines), default=0.0)
    return max(high, min(by_hand, 2 * high)) or 1.0


def _framed(cells: list[list[str]], top: float, frontier: Frontier) -> list[str]:
    labels = {0: format_percent(top), HEIGHT - 1: "0.0%"}
    lines = [
        f"{labels.get(row, ''):>8} |{''.join(cell).rstrip()}" for row, cell in enumerate(cells)
    ]
    low, high = format_bytes(frontier.floor_bytes), format_bytes(frontier.plain_peak_bytes)
    lines.append(f"{'':>8} +{'-' * WIDTH}")
    lines.append(f"{'overhead':>8}  {low}{high.rjust(WIDTH - len(low))}")
    key = "* planned" + "   K knee" * (frontier.knee is not None)
    return [*lines, f"{'':>10}{key}" + "   o placed by hand" * bool(frontier.baselines)]


def _points(frontier: Frontier) -> list[str]:
    rows = [
        (
            format_bytes(p.budget_bytes),
            format_bytes(p.peak_bytes),
            format_percent(p.overhead_ratio),
            str(p.segments),
        )
        for p in thinned(frontier.points, MOST_ROWS)
    ]
    return grid(("budget", "predicted peak", "overhead", "segments"), rows)


def thinned(points: Sequence[FrontierPoint], most: int) -> list[FrontierPoint]:
    """Return evenly spread points, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(k * (len(points) - 1) / (most - 1))] for k in range(most)]


def _by_hand(frontier: Frontier) -> list[str]:
    rows = hand_rows(frontier)
    return grid(HAND_HEAD, rows) if rows else []


HAND_HEAD = ("placed by hand", "predicted peak", "overhead", "planned")


def hand_rows(frontier: Frontier) -> list[tuple[str, ...]]:
    """Return placements by hand as rows, each beside the plan with no higher peak."""
    return [
        (
            f"{baseline.name} ({baseline.setting})" if baseline.setting else baseline.name,
            format_bytes(baseline.peak_bytes),
            format_percent(baseline.overhead_ratio),
            "none found"
            if baseline.planned_overhead_ratio is None
            else format_percent(baseline.planned_overhead_ratio),
        )
        for baseline in representative(frontier.baselines)
    ]


def representative(baselines: Iterable[Baseline]) -> list[Baseline]:
    """Return two placements of each kind: the one with the lowest peak and the median one."""
    kinds: dict[str, list[Baseline]] = {}
    for baseline in baselines:
        kinds.setdefault(baseline.name, []).append(baseline)
    found: list[Baseline] = []
    for members in kinds.values():
        ordered = sorted(members, key=lambda b: b.peak_bytes)
        found += dict.fromkeys((ordered[len(ordered) // 2], ordered[0]))
    return found
