"""`planner report PLAN -o FILE.html`: the plan as one page for a browser. Needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_output, check_output
from planner.cli.console import Console

if TYPE_CHECKING:
    from planner import Plan, Profile
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
    add_output(parser, "the page (default: PLAN with .html)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the page."""
    import planner
    from planner.documents.files import write_document

    path: Path = args.output or args.plan.with_suffix(".html")
    check_output(path, args.force)
    plan = planner.Plan.load(args.plan)
    profile = None if args.profile is None else planner.Profile.load(args.profile)
    page = render(plan, profile)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(path, page, force=args.force)
    facts = {"report": str(path), "bytes": len(page.encode())}
    console.result(f"wrote {path} ({facts['bytes']:,} bytes)", lambda: json.dumps(facts, indent=2))
    return 0


def render(plan: Plan, profile: Profile | None) -> str:
    """Return the page of a plan, richer where its profile is given."""
    from planner.report.html import report_html

    if profile is None:
        return report_html(plan)
    from planner.analysis.stored_plan import found_exclusions, graph_for, keep_reasons, timeline
    from planner.analysis.sweep import sweep_profile

    graph = graph_for(plan, profile)
    frontier = sweep_profile(
        profile, pins=plan.pins, exclusions=found_exclusions(plan, profile), graph=graph
    )
    return report_html(plan, timeline(graph, plan), frontier, keep_reasons(graph, plan))
