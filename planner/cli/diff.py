"""`planner diff A B`: what differs between two plans, by meaning. Needs no torch."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.arguments import add_command
from planner.cli.console import Console

if TYPE_CHECKING:
    from planner.analysis.diff import Fate, PlanDiff
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = "Show what differs between two plans; exit code 1 when they differ."
    parser = add_command(subcommands, "diff", summary, run)
    parser.add_argument("before", metavar="A", type=Path, help="a stored plan")
    parser.add_argument("after", metavar="B", type=Path, help="the plan to compare with it")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the difference; 0 when the plans are the same."""
    import planner

    diff = planner.diff(args.before, args.after)
    console.result(str(diff), lambda: json.dumps(facts(diff), indent=2))
    return 0 if diff.same else 1


def facts(diff: PlanDiff) -> dict[str, Any]:
    """Return the difference as JSON-ready facts, in a fixed order."""
    return {
        "same": diff.same,
        "units": [
            {"unit": c.unit, "before": _fate(c.before), "after": _fate(c.after)} for c in diff.units
        ],
        "fields": [
            {"field": c.field, "before": c.before, "after": c.after}
            for c in (*diff.numbers, *diff.others)
        ],
    }


def _fate(fate: Fate | None) -> dict[str, Any] | None:
    if fate is None:
        return None
    return {
        "segments": len(fate.segments),
        "given_up_bytes": fate.given_up_bytes,
        "replayed_ops": sum(s.replayed_ops for s in fate.segments),
        "keep": [address for s in fate.segments for address in s.keep],
    }
