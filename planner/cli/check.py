"""`planner check PLAN MODEL`: whether model, mode and inputs still fit the plan; for CI."""

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
    summary = "Fail, naming what changed, when the model or its step no longer fits the plan."
    parser = add_command(subcommands, "check", summary, run)
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a stored plan")
    add_model(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Check the plan; StalePlanError says what does not fit."""
    import planner

    plan = planner.Plan.load(args.plan)
    target = load_target(args.model)
    planner.check(target.model, plan, inputs=target.inputs)
    answer = {"ok": True, "model_class": plan.model_class, "segments": len(plan.segments)}
    console.result(
        f"{args.plan} fits {args.model}: {plan.model_class}, {len(plan.segments)} segments",
        lambda: json.dumps(answer, indent=2),
    )
    return 0
