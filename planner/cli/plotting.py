"""`--plot FILE` of `plan` and `sweep`: the frontier as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.console import Console

if TYPE_CHECKING:
    from planner import Frontier, Plan, Profile


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add --plot."""
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help="also draw the frontier (png, svg, pdf); needs matplotlib",
    )


def draw(frontier: Frontier, path: Path, console: Console, plan: Plan | None = None) -> None:
    """Draw a frontier and say so."""
    from planner.reports.plot import plot_frontier

    path.parent.mkdir(parents=True, exist_ok=True)
    plot_frontier(frontier, path, plan)
    console.note(f"wrote {path}")


def draw_plan(plan: Plan, profile: Profile, path: Path, console: Console) -> None:
    """Draw the frontier of a profile with a mark at the plan."""
    from planner.analysis.stored_plan import found_exclusions, graph_for, predict
    from planner.analysis.sweep import sweep_profile

    graph = graph_for(plan, profile)
    frontier = sweep_profile(
        profile, pins=plan.pins, exclusions=found_exclusions(plan, profile), graph=graph
    )
    draw(frontier, path, console, predict(graph, plan))
