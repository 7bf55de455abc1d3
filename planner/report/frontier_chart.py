"""The frontier as a chart: overhead over peak, with the knee and placements by hand. Pure."""

from __future__ import annotations

from planner.documents.frontier import Frontier
from planner.documents.plan import Plan
from planner.documents.printing.frontier import knee_sentence, top_ratio
from planner.report.svg import SIDE, Chart, Label, Point, dot, path, scaled, upright
from planner.units import format_bytes, format_percent

KINDS = ("plain", "every block", "best k of n", "uniform segments", "sqrt")


def frontier_chart(frontier: Frontier, plan: Plan | None = None) -> Chart:
    """Return the chart of a frontier, with a mark at the plan if one is given."""
    top = 1.05 * top_ratio(frontier)
    low, high = frontier.floor_bytes, frontier.plain_peak_bytes
    wide = max(1, high - low)

    def at(peak_bytes: int, ratio: float) -> Point:
        return round((peak_bytes - low) / wide * SIDE), scaled(ratio, top)

    shapes, legend = [], [("ours", "planned: least overhead")]
    below = [Label(0, format_bytes(low)), Label(1, format_bytes(high))]
    shapes.append(
        path([at(p.peak_bytes, p.overhead_ratio) for p in frontier.points], "ours", "planned")
    )
    for baseline in frontier.baselines:
        if baseline.overhead_ratio > top or not low <= baseline.peak_bytes <= high:
            continue
        name = f"{baseline.name} ({baseline.setting})" if baseline.setting else baseline.name
        css = f"hand-{KINDS.index(baseline.name)}"
        title = f"{name}: {_figures(baseline.peak_bytes, baseline.overhead_ratio)}"
        shapes.append(dot(*at(baseline.peak_bytes, baseline.overhead_ratio), css, title))
        if (css, baseline.name) not in legend:
            legend.append((css, baseline.name))
    knee = frontier.knee
    if knee is not None:
        shapes.append(dot(*at(knee.peak_bytes, knee.overhead_ratio), "knee", "knee"))
        legend.append(("knee", f"knee, {_figures(knee.peak_bytes, knee.overhead_ratio)}"))
    if plan is not None:
        peak, ratio = plan.predicted_peak_bytes, plan.predicted_overhead_ratio
        if low <= plan.budget_bytes <= high:
            shapes.append(upright(at(plan.budget_bytes, 0)[0], "budget"))
            legend.append(("budget", f"budget {format_bytes(plan.budget_bytes)}"))
        if low <= peak <= high:
            shapes.append(dot(*at(peak, ratio), "chosen", "this plan"))
            legend.append(("chosen", f"this plan, {_figures(peak, ratio)}"))
    return Chart(
        name="frontier",
        title="Least overhead over peak memory (predicted)",
        description=f"Overhead over peak from {format_bytes(low)} to {format_bytes(high)}. "
        + knee_sentence(frontier),
        shapes=shapes,
        left=[Label(0, "0%"), Label(1 / 1.05, format_percent(top / 1.05))],
        below=below,
        legend=legend,
    )


def _figures(peak_bytes: int, ratio: float) -> str:
    return f"{format_bytes(peak_bytes)}, {format_percent(ratio)} more time"
