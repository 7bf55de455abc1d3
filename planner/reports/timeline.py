"""The memory timeline as text and as charts: what is live, op by op, plain against planned. Pure.

Called by `planner report`, by notebooks and by `planner explain`.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.documents.printing.grid import grid, printable
from planner.graph.live_bytes import KINDS, Line, Timeline
from planner.reports.svg import SIDE, Chart, Label, dot, path, rule, scaled, upright
from planner.units import format_bytes

COLUMNS = 400
"""Most points along a chart; peaks are never thinned out."""
CLOSE = 0.1
"""Labels closer together than this share of a plot's height would overlap."""


def timeline_text(timeline: Timeline) -> str:
    """Return what is live at the two peaks, side by side, and where they are."""
    plain, planned = timeline.plain.at_peak(), timeline.planned.at_peak()
    rows = [
        (kind, format_bytes(plain.get(kind, 0)), format_bytes(planned.get(kind, 0)))
        for kind in KINDS
        if kind in plain or kind in planned
    ]
    total = [format_bytes(line.peak_bytes) for line in (timeline.plain, timeline.planned)]
    lines = grid(("live at the peak", "plain", "planned"), [*rows, ("total", *total)])
    where = [
        f"  {name}: {peak_sentence(line)}"
        for name, line in (("plain", timeline.plain), ("planned", timeline.planned))
    ]
    return "\n".join([*lines, "", *where])


def peak_sentence(line: Line) -> str:
    """Return where a line peaks, in words."""
    where = f" in {printable(line.peak_unit)}" if line.peak_unit else ""
    return f"peak {format_bytes(line.peak_bytes)}{where} (op {line.peak_op} of {len(line.totals)})"


def timeline_charts(timeline: Timeline) -> list[Chart]:
    """Return one chart of the plain step and one of the planned step, to the same scale."""
    highest = timeline.plain.peak_bytes, timeline.planned.peak_bytes, timeline.budget_bytes
    top = 1.08 * max(*highest, 1)
    return [
        _chart("planned", timeline.planned, timeline, top),
        _chart("plain", timeline.plain, timeline, top),
    ]


def _chart(name: str, line: Line, timeline: Timeline, top: float) -> Chart:
    columns = columns_of(line.totals)
    last = max(1, len(line.totals) - 1)
    x_of = [round(op / last * SIDE) for op in columns]
    budget = format_bytes(timeline.budget_bytes)
    held = [f"{kind} {format_bytes(size)}" for kind, size in line.at_peak().items()]
    shapes = _areas(line, columns, x_of, top)
    if name == "planned":
        outline = columns_of(timeline.plain.totals)
        points = [
            (round(op / last * SIDE), scaled(timeline.plain.totals[op], top)) for op in outline
        ]
        shapes.append(path(points, "outline", "the plain step"))
    shapes += [upright(round(start / last * SIDE), "phase") for _, start, _ in timeline.phases[1:]]
    shapes.append(rule(scaled(timeline.budget_bytes, top), "budget", f"budget {budget}"))
    peak = peak_sentence(line)
    if line.totals:
        at = round(line.peak_op / last * SIDE), scaled(line.peak_bytes, top)
        shapes.append(dot(*at, "peak", peak))
    return Chart(
        name=f"timeline-{name}",
        title=f"{name.capitalize()} step: {peak}",
        description=f"Live bytes over the step. {peak}: {', '.join(held)}. Budget {budget}.",
        shapes=shapes,
        left=_heights(line.peak_bytes, timeline.plain.peak_bytes, top),
        below=[Label((a + b) / 2 / last, phase) for phase, a, b in timeline.phases],
        inside=[Label(timeline.budget_bytes / top, f"budget {budget}", "budget")],
        legend=_legend(line, name),
    )


def _heights(own_bytes: int, plain_bytes: int, top: float) -> list[Label]:
    """Return the labels of the vertical axis: 0, the line's peak, the plain peak if it differs."""
    sizes = [own_bytes]
    if abs(plain_bytes - own_bytes) > CLOSE * top:
        sizes.append(plain_bytes)
    return [Label(0, "0"), *(Label(size / top, format_bytes(size)) for size in sizes)]


def _legend(line: Line, name: str) -> list[tuple[str, str]]:
    present = [(_css(kind), kind) for kind in reversed(KINDS) if any(line.by_kind.get(kind, ()))]
    return [*present, ("outline", "the plain step")] if name == "planned" else present


def columns_of(totals: Sequence[int]) -> list[int]:
    """Return the ops to draw: of each stretch the one at which most is live, the peak included."""
    count = len(totals)
    if count <= COLUMNS:
        return list(range(count))
    edges = [count * k // COLUMNS for k in range(COLUMNS + 1)]
    return [
        max(range(low, high), key=totals.__getitem__)
        for low, high in zip(edges, edges[1:], strict=False)
    ]


def _areas(line: Line, columns: list[int], x_of: list[int], top: float) -> list[str]:
    """Return the kinds of memory as stacked areas."""
    floor = [0] * len(columns)
    shapes = []
    for kind in KINDS:
        row = line.by_kind.get(kind, ())
        if not any(row):
            continue
        roof = [low + row[op] for low, op in zip(floor, columns, strict=True)]
        upper = [(x, scaled(v, top)) for x, v in zip(x_of, roof, strict=True)]
        lower = [(x, scaled(v, top)) for x, v in zip(x_of, floor, strict=True)]
        shapes.append(path([*upper, *reversed(lower)], f"area {_css(kind)}", kind, close=True))
        floor = roof
    return shapes


def _css(kind: str) -> str:
    return f"kind-{KINDS.index(kind)}"
