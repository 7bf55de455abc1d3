"""`planner demo`: plan, apply and verify a built-in model in a few seconds."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command
from planner.cli.console import Console
from planner.cli.verify import facts
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner import Plan, Verification
    from planner.cli.arguments import Subcommands

DEFAULT_BUDGET = "60%"


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add_command(
        subcommands, "demo", "Plan, apply and verify a small built-in transformer.", run
    )
    parser.add_argument(
        "--budget",
        default=DEFAULT_BUDGET,
        metavar="SIZE",
        help=f"as for `plan` (default: {DEFAULT_BUDGET.replace('%', '%%')} of the plain peak)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, apply, verify; print a table before and after."""
    import planner
    from planner.cli.demo_model import demo

    with console.stages(2) as stage:
        model, inputs = demo()
        stage("planning")
        plan = planner.plan(model, budget_mb=args.budget, inputs=inputs)
        stage("verifying")
        found = planner.verify(model, plan, inputs=inputs)
    document = {"plan": json.loads(plan.to_json()), "verification": facts(found)}
    console.result(before_and_after(plan, found), lambda: json.dumps(document, indent=2))
    return 0 if found.ok else 1


def before_and_after(plan: Plan, found: Verification) -> str:
    """Return the table of the demo."""
    most_runs = max(found.forward_runs.values(), default=1)
    saved = 1 - found.measured_peak_bytes / found.plain_peak_bytes
    rows = [
        ("", "plain step", "planned step"),
        (
            "peak",
            format_bytes(found.plain_peak_bytes),
            f"{format_bytes(found.measured_peak_bytes)} (-{saved:.0%})",
        ),
        ("budget", "", format_bytes(plan.budget_bytes)),
        ("forward runs", "1", f"{most_runs}, and {found.replayed_ops} ops replayed in backward"),
        ("overhead", "", f"{found.overhead_ratio:+.1%} of the step time"),
        ("gradients", "", "equal, bit for bit" if found.gradients_equal else "DIFFERENT"),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
