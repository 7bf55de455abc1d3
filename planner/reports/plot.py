"""The frontier as a picture, by matplotlib (extra `plot`). Called by `--plot`."""

from __future__ import annotations

from os import PathLike
from typing import Any

from planner.documents.frontier import Frontier
from planner.documents.plan import Plan
from planner.documents.printing.frontier import knee_sentence, top_ratio
from planner.errors import PlannerError
from planner.units import MIB

MARKS = {"plain": "o", "every block": "s", "best k of n": "^", "uniform segments": "v", "sqrt": "D"}


def plot_frontier(frontier: Frontier, path: str | PathLike[str], plan: Plan | None = None) -> None:
    """Draw a frontier to a file; its ending says the format (png, svg, pdf).

    Raises:
        PlannerError: matplotlib is not installed, or does not know the format.
    """
    figure = _figure()
    axes = figure.add_subplot()
    points = frontier.points
    peaks = [p.peak_bytes / MIB for p in points]
    axes.plot(peaks, [p.overhead_ratio * 100 for p in points], label="planned", zorder=3)
    _place_by_hand(axes, frontier)
    knee = frontier.knee
    if knee is not None:
        at = knee.peak_bytes / MIB, knee.overhead_ratio * 100
        axes.plot(*at, "ko", markersize=9, label="knee", zorder=4)
    if plan is not None:
        at = plan.predicted_peak_bytes / MIB, plan.predicted_overhead_ratio * 100
        axes.plot(*at, "r*", markersize=14, label="this plan", zorder=5)
        axes.axvline(plan.budget_bytes / MIB, color="r", linestyle="--", label="budget")
    axes.set_xlabel("predicted peak in MiB")
    axes.set_ylabel("predicted overhead in % of the plain step")
    axes.set_ylim(0, 105 * top_ratio(frontier))
    axes.set_title(f"{frontier.model_class}\n{knee_sentence(frontier)}", fontsize="medium")
    axes.legend()
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except ValueError as error:
        raise PlannerError(
            f"cannot draw {path}", numbers=str(error), cause="an unknown ending of the file's name",
            fix="name it *.png, *.svg or *.pdf",
        ) from error  # fmt: skip


def _place_by_hand(axes: Any, frontier: Frontier) -> None:
    top = 1.05 * top_ratio(frontier)
    for name, mark in MARKS.items():
        shown = [b for b in frontier.baselines if b.name == name and b.overhead_ratio <= top]
        if shown:
            peaks = [b.peak_bytes / MIB for b in shown]
            axes.plot(peaks, [b.overhead_ratio * 100 for b in shown], mark, alpha=0.7, label=name)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlannerError(
            "a plot needs matplotlib",
            cause=str(error),
            fix="pip install 'segment-planner[plot]', or use planner report, which needs nothing",
        ) from error
    return Figure(figsize=(8, 5))
