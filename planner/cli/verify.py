"""`planner verify PLAN MODEL`: run the step plain and planned, and compare."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.arguments import add_command, add_model
from planner.cli.console import Console
from planner.cli.stored_step import as_planned
from planner.cli.target import load_target

if TYPE_CHECKING:
    from planner import Verification
    from planner.cli.arguments import Subcommands

FACTS = (
    "ok",
    "compared",
    "plain_repeats",
    "gradients_equal",
    "outputs_equal",
    "buffers_equal",
    "measured_peak_bytes",
    "plain_peak_bytes",
    "reserved_bytes",
    "budget_bytes",
    "overhead_ratio",
    "replayed_ops",
    "forward_runs",
)


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = "Run the step plain and planned; compare gradients, bit for bit, and peaks."
    parser = add_command(subcommands, "verify", summary, run)
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a stored plan")
    add_model(parser)
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="timed steps of each kind (3)"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Verify; 0 when every check passed."""
    import planner

    plan = planner.Plan.load(args.plan)
    with console.stages(2) as stage:
        stage("loading the model")
        target = load_target(args.model)
        stage("running the steps")
        with as_planned(plan, target) as arguments:
            found = planner.verify(target.model, plan, repeats=args.repeats, **arguments)
    console.result(str(found), lambda: json.dumps(facts(found), indent=2))
    return 0 if found.ok else 1


def facts(found: Verification) -> dict[str, Any]:
    """Return a verification as JSON-ready facts, in a fixed order."""
    return {name: getattr(found, name) for name in FACTS}
