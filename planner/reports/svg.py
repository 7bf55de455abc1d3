"""Charts as inline SVG inside HTML: the plot stretches with the page, its labels are HTML text.

An SVG that scales would shrink its text on a phone. So the SVG holds shapes only, in a square of
`SIDE` units that is stretched to the plot's box, and `chart` puts the labels around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

SIDE = 1000
"""Width and height of a plot in its own units; coordinates are integers."""

Point = tuple[int, int]


def path(points: Iterable[Point], css: str, title: str = "", close: bool = False) -> str:
    """Return a line, or with `close` an area, through points."""
    steps = [f"{x} {y}" for x, y in slim(list(points))]
    shape = f"M{'L'.join(steps)}{'Z' if close else ''}"
    return _path(f'd="{shape}" class="{css}"', title)


def dot(x: int, y: int, css: str, title: str = "") -> str:
    """Return a dot that stays round however the plot is stretched: a line of no length."""
    return _path(f'd="M{x} {y}h0" class="dot {css}"', title)


def rule(y: int, css: str, title: str = "") -> str:
    """Return a line from left to right."""
    return _path(f'd="M0 {y}H{SIDE}" class="{css}"', title)


def upright(x: int, css: str, title: str = "") -> str:
    """Return a line from top to bottom."""
    return _path(f'd="M{x} 0V{SIDE}" class="{css}"', title)


def _path(attributes: str, title: str) -> str:
    """Return a path whose line keeps its width when the plot is stretched."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<path {attributes} vector-effect="non-scaling-stroke">{inside}</path>'


def slim(points: Sequence[Point]) -> list[Point]:
    """Return the points without those in the middle of a level stretch.

    >>> slim([(0, 5), (1, 5), (2, 5), (3, 7)])
    [(0, 5), (2, 5), (3, 7)]
    """
    return [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if before is None or after is None or not before[1] == point[1] == after[1]
    ]


def scaled(value: float, top: float) -> int:
    """Return the height of a value on the plot: 0 is at the bottom, `top` at the top."""
    return SIDE - round(min(1.0, value / top if top else 0.0) * SIDE)


@dataclass(frozen=True, slots=True)
class Label:
    """A text beside a plot, at a place from 0 (left, bottom) to 1 (right, top)."""

    place: float
    text: str
    css: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot with its labels and its legend.

    Attributes:
        name: unique on the page, for ids.
        title: what it shows, in a few words.
        description: the same for those who do not see it, with the figures that matter.
        shapes: SVG elements.
        left, below: labels of the two axes.
        inside: labels within the plot, at a height.
        legend: (css class of a swatch, text).
    """

    name: str
    title: str
    description: str
    shapes: Sequence[str]
    left: Sequence[Label] = ()
    below: Sequence[Label] = ()
    inside: Sequence[Label] = ()
    legend: Sequence[tuple[str, str]] = field(default=())


def chart_html(chart: Chart) -> str:
    """Return a chart as an HTML figure."""
    name = escape(chart.name)
    svg = (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">'
        f'{escape(chart.title)}</title><desc id="{name}-desc">{escape(chart.description)}</desc>'
        f"{''.join(chart.shapes)}</svg>"
    )
    left = "".join(_side(label) for label in chart.left)
    inside = "".join(_side(label) for label in chart.inside)
    below = "".join(_below(label) for label in chart.below)
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption>'
        f'<div class="plot"><div class="left" aria-hidden="true">{left}</div>'
        f'<div class="canvas">{svg}<div class="inside" aria-hidden="true">{inside}</div></div>'
        f'<div class="below" aria-hidden="true">{below}</div></div>{_legend(chart.legend)}</figure>'
    )


def _side(label: Label) -> str:
    return (
        f'<span class="{label.css}" style="bottom:{label.place * 100:.1f}%">'
        f"{escape(label.text)}</span>"
    )


def _below(label: Label) -> str:
    # Anchored by its own place, so that the first and the last stay within the plot.
    at = f"{label.place * 100:.1f}%"
    return (
        f'<span class="{label.css}" style="left:{at};transform:translateX(-{at})">'
        f"{escape(label.text)}</span>"
    )


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = [
        f'<li><i class="swatch {css}" aria-hidden="true"></i>{escape(text)}</li>'
        for css, text in entries
    ]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""
