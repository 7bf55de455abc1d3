"""`planner demo`: plan, apply and verify a built-in model in a few seconds."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command
from planner.cli.console import Console
from planner.cli.verify import facts
from planner.documents.printing.grid import grid
from planner.units import format_bytes, format_percent

if TYPE_CHECKING:
    from planner import Plan, Verification
    from planner.cli.arguments import Subcommands

DEFAULT_BUDGET = "60%"
REPEATS = 7  # timed steps of each kind: the least of so many is steady to a few percent


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

    with console.stages(2) as stage, one_thread():
        model, inputs = demo()
        stage("planning")
        plan = planner.plan(model, budget_mb=args.budget, inputs=inputs)
        stage("verifying")
        found = planner.verify(model, plan, inputs=inputs, repeats=REPEATS)
    document = {"plan": json.loads(plan.to_json()), "verification": facts(found)}
    console.result(before_and_after(plan, found), lambda: json.dumps(document, indent=2))
    return 0 if found.ok else 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: on a busy machine that is faster for small ops, and steadier."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def before_and_after(plan: Plan, found: Verification) -> str:
    """Return the table of the demo."""
    runs = str(max(found.forward_runs.values(), default=1))
    rows = [
        ("peak", *map(format_bytes, (found.plain_peak_bytes or 0, found.measured_peak_bytes))),
        ("budget", "", format_bytes(plan.budget_bytes)),
        ("forward runs", "1", runs),
        ("ops replayed", "0", str(found.replayed_ops)),
        ("overhead", "", format_percent(found.overhead_ratio or 0)),
        ("gradients", "", "equal, bit for bit" if found.gradients_equal else "DIFFERENT"),
    ]
    return "\n".join(grid((plan.model_class, "plain step", "planned step"), rows))
