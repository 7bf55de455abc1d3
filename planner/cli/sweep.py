"""`planner sweep PROFILE|MODEL`: the least overhead for every budget."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import MODEL_HELP, add_command
from planner.cli.console import Console
from planner.cli.plotting import add_plot, draw

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands
    from planner.documents import Profile


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = "Show the least overhead for every budget, from the floor to the plain peak."
    parser = add_command(subcommands, "sweep", summary, run)
    parser.add_argument(
        "source", metavar="PROFILE|MODEL", help=f"a stored profile (*.json), or {MODEL_HELP}"
    )
    parser.add_argument(
        "--budget",
        action="append",
        metavar="SIZE",
        help="look at this budget (300MB, 80%%); may be repeated (default: 50 of them)",
    )
    parser.add_argument("--points", type=int, default=50, metavar="N", help="budgets (50)")
    add_plot(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Sweep and print the chart and the tables."""
    from planner.analysis.sweep import sweep_profile

    with console.stages(2) as stage:
        stage("loading")
        profile = load_profile(args.source)
        stage("searching")
        frontier = sweep_profile(profile, args.budget, points=max(2, args.points))
    if args.plot is not None:
        draw(frontier, args.plot, console)
    console.result(str(frontier), lambda: json.dumps(frontier.to_dict(), indent=2))
    return 0


def load_profile(source: str) -> Profile:
    """Return the stored profile that `source` names, or profile the model that it names."""
    import planner

    if source.endswith(".json") or Path(source).is_file():
        return planner.Profile.load(source)
    from planner.cli.target import load_target
    from planner.training_step.fingerprint import fingerprint
    from planner.training_step.inputs import find_profile

    target = load_target(source)
    stored = find_profile(fingerprint(target.model)) if target.inputs is None else None
    return stored or planner.profile(target.model, **target.step_arguments())
