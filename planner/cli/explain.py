"""`planner explain PLAN UNIT --profile FILE`: one unit's choices and prices. Needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command
from planner.cli.console import Console

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = (
        "Show what a unit keeps and recomputes, what that costs, and what other choices would cost."
    )
    parser = add_command(subcommands, "explain", summary, run)
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a stored plan")
    parser.add_argument("unit", metavar="UNIT", help="a unit's qualified name; . for the model")
    parser.add_argument(
        "--profile", metavar="FILE", type=Path, required=True, help="the profile of the step"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Print what the plan does in the unit."""
    import planner

    found = planner.explain(args.plan, args.unit, profile=args.profile)
    console.result(str(found), lambda: json.dumps(found.to_dict(), indent=2))
    return 0
