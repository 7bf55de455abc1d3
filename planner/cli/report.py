"""`planner report PLAN -o FILE.html`: the plan as one page for a browser. Needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_output, check_output
from planner.cli.console import Console
from planner.errors import InvalidInputsError

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = "Write a plan as one HTML page that needs no network."
    parser = add_command(subcommands, "report", summary, run)
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a stored plan")
    parser.add_argument(
        "--profile",
        metavar="FILE",
        type=Path,
        help="the profile it was made from: adds the memory timeline, the frontier and reasons",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="also write the memory of the step, op by op, for Perfetto; needs --profile",
    )
    add_output(parser, "the page (default: PLAN with .html)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the page, and the trace where one is asked for."""
    import planner

    path: Path = args.output or args.plan.with_suffix(".html")
    check_output(path, args.force)
    check_output(args.trace, args.force)
    if args.trace is not None and args.profile is None:
        raise InvalidInputsError(
            "a trace needs the profile of the step",
            f"--trace {args.trace}, and no --profile",
            "a plan holds its figures, not the step op by op",
            "add --profile FILE, as written by planner profile -o FILE",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    page = planner.report(args.plan, path, profile=args.profile, force=args.force)
    facts = {"report": str(path), "bytes": len(page.encode())}
    if args.trace is not None:
        planner.trace(args.plan, args.trace, profile=args.profile)
        console.note(f"wrote {args.trace}: open it in https://ui.perfetto.dev")
    console.result(f"wrote {path} ({facts['bytes']:,} bytes)", lambda: json.dumps(facts, indent=2))
    return 0
