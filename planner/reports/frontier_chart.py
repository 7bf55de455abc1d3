"""The frontier as a chart: overhead over peak, with the knee and placements by hand. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.documents.frontier import Baseline, Frontier
from planner.documents.plan import Plan
from planner.documents.printing.frontier import knee_sentence, top_ratio
from planner.reports.svg import SIDE, Chart, Label, Point, dot, path, scaled, upright
from planner.units import format_bytes, format_percent

KINDS = ("plain", "every block", "best k of n", "uniform segments", "sqrt")


@dataclass(frozen=True, slots=True)
class Mark:
    """A shape on the chart with its entry in the legend: (css class, text)."""

    shape: str
    legend: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Axes:
    """The part of the plane that the chart shows: peaks `low` to `high`, overheads 0 to `top`."""

    low: int
    high: int
    top: float

    def at(self, peak_bytes: int, ratio: float) -> Point:
        """Return the place of a peak and an overhead on the plot."""
        across = (peak_bytes - self.low) / max(1, self.high - self.low)
        return round(across * SIDE), scaled(ratio, self.top)

    def shows(self, peak_bytes: int) -> bool:
        """Whether a peak is on the plot."""
        return self.low <= peak_bytes <= self.high


def frontier_chart(frontier: Frontier, plan: Plan | None = None) -> Chart:
    """Return the chart of a frontier, with a mark at the plan if one is given."""
    low, high = frontier.floor_bytes, frontier.plain_peak_bytes
    axes = Axes(low, high, 1.05 * top_ratio(frontier))
    marks = [_curve(frontier, axes), *_by_hand(frontier, axes), *_knee(frontier, axes)]
    marks += _plan(plan, axes) if plan is not None else ()
    return Chart(
        name="frontier",
        title="Least overhead over peak memory (predicted)",
        description=f"Overhead over peak from {format_bytes(low)} to {format_bytes(high)}. "
        + knee_sentence(frontier),
        shapes=[mark.shape for mark in marks],
        left=[Label(0, "0%"), Label(1 / 1.05, format_percent(axes.top / 1.05))],
        below=[Label(0, format_bytes(low)), Label(1, format_bytes(high))],
        legend=list(dict.fromkeys(mark.legend for mark in marks)),
    )


def _curve(frontier: Frontier, axes: Axes) -> Mark:
    points = [axes.at(p.peak_bytes, p.overhead_ratio) for p in frontier.points]
    return Mark(path(points, "ours", "planned"), ("ours", "planned: least overhead"))


def _by_hand(frontier: Frontier, axes: Axes) -> Iterator[Mark]:
    for baseline in frontier.baselines:
        if baseline.overhead_ratio <= axes.top and axes.shows(baseline.peak_bytes):
            css = f"hand-{KINDS.index(baseline.name)}"
            place = axes.at(baseline.peak_bytes, baseline.overhead_ratio)
            yield Mark(dot(*place, css, _title(baseline)), (css, baseline.name))


def _title(baseline: Baseline) -> str:
    name = f"{baseline.name} ({baseline.setting})" if baseline.setting else baseline.name
    return f"{name}: {_figures(baseline.peak_bytes, baseline.overhead_ratio)}"


def _knee(frontier: Frontier, axes: Axes) -> Iterator[Mark]:
    knee = frontier.knee
    if knee is not None:
        place = axes.at(knee.peak_bytes, knee.overhead_ratio)
        text = f"knee, {_figures(knee.peak_bytes, knee.overhead_ratio)}"
        yield Mark(dot(*place, "knee", "knee"), ("knee", text))


def _plan(plan: Plan, axes: Axes) -> Iterator[Mark]:
    peak, ratio = plan.predicted_peak_bytes, plan.predicted_overhead_ratio
    if axes.shows(plan.budget_bytes):
        text = f"budget {format_bytes(plan.budget_bytes)}"
        yield Mark(upright(axes.at(plan.budget_bytes, 0)[0], "budget"), ("budget", text))
    if axes.shows(peak):
        text = f"this plan, {_figures(peak, ratio)}"
        yield Mark(dot(*axes.at(peak, ratio), "chosen", "this plan"), ("chosen", text))


def _figures(peak_bytes: int, ratio: float) -> str:
    return f"{format_bytes(peak_bytes)}, {format_percent(ratio)} more time"
