"""`planner check PLAN MODEL`: whether the model still fits the plan; for continuous integration."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_model
from planner.cli.console import Console
from planner.cli.target import load_target

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = "Fail, naming the changed units, when the model no longer fits the plan."
    parser = add_command(subcommands, "check", summary, run)
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a stored plan")
    add_model(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Apply the plan, which raises StalePlanError if it does not fit, and remove it."""
    import planner

    plan = planner.Plan.load(args.plan)
    target = load_target(args.model)
    planner.apply(target.model, plan).remove()
    answer = {"ok": True, "model_class": plan.model_class, "segments": len(plan.segments)}
    console.result(
        f"{args.plan} fits {args.model}: {plan.model_class}, {len(plan.segments)} segments",
        lambda: json.dumps(answer, indent=2),
    )
    return 0
