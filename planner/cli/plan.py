"""`planner plan MODEL --budget 300MB`: find the cheapest plan within the budget."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_model, add_output, check_output, save
from planner.cli.console import Console
from planner.cli.estimating import add_estimate, autocasting, estimate_arguments
from planner.cli.plotting import add_plot, draw_plan
from planner.cli.target import load_target
from planner.cli.trials import add_trials, search_of, trial_bar
from planner.errors import InvalidBudgetError
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner import Plan, Profile
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add_command(
        subcommands, "plan", "Find the cheapest recomputation plan within a memory budget.", run
    )
    add_model(parser)
    parser.add_argument(
        "--budget",
        required=True,
        metavar="SIZE",
        help="the highest peak allowed: 300MB, 286MiB, 2GB, 80%% of the plain step's peak, or knee:"
        " the budget below which each MiB less costs much more than above",
    )
    parser.add_argument(
        "--search", default="auto", metavar="NAME", help="auto, dp, milp or optuna (auto)"
    )
    add_trials(parser)
    parser.add_argument(
        "--save",
        action="append",
        default=[],
        metavar="PATTERN",
        help="never recompute these units (a name, or a pattern with *); may be repeated",
    )
    parser.add_argument(
        "--recompute",
        action="append",
        default=[],
        metavar="PATTERN",
        help="always recompute these units; may be repeated",
    )
    parser.add_argument("--profile", metavar="FILE", type=Path, help="plan from this profile")
    parser.add_argument(
        "--capped", action="store_true", help="never run a step that needs more than the budget"
    )
    add_estimate(parser)
    add_plot(parser)
    add_output(parser, "the plan")


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, print the plan as a table and save it where -o says."""
    import planner

    check_output(args.output, args.force)
    base = _earlier(args.output)
    with console.stages(2) as stage:
        stage("loading the model")
        target = load_target(args.model)
        profile = None if args.profile is None else planner.Profile.load(args.profile)
        stage("profiling and searching")
        with autocasting(args, target.model), trial_bar(args, console) as trying:
            budget = args.budget
            if budget == "knee":
                profile = profile or planner.profile(
                    target.model, **target.step_arguments(), **estimate_arguments(args)
                )
                budget = _knee(profile, args)
            plan = planner.plan(
                target.model,
                budget_mb=budget,
                profile=profile,
                search=search_of(args, trying),
                save=tuple(args.save),
                recompute=tuple(args.recompute),
                base=base,
                **target.step_arguments(),
                **estimate_arguments(args),
            )
            if args.plot is not None:
                profile = profile or planner.profile(
                    target.model, **target.step_arguments(), **estimate_arguments(args)
                )
                draw_plan(plan, profile, args.plot, console)
    if args.output is not None:
        save(plan, args.output, args.force, console)
    console.result(str(plan), plan.to_json)
    return 0


def _knee(profile: Profile, args: argparse.Namespace) -> str:
    """Return the budget at which the frontier bends most."""
    import planner

    found = planner.sweep(profile, save=args.save, recompute=args.recompute, baselines=False)
    if found.knee is None:
        raise InvalidBudgetError(
            "the frontier of this step has no knee",
            f"{len(found.points)} budgets from {format_bytes(found.floor_bytes)} to"
            f" {format_bytes(found.plain_peak_bytes)} cost about the same for each MiB",
            "memory and time trade evenly here",
            "choose a budget from planner sweep MODEL",
        )
    return f"{found.knee.peak_bytes}B"


def _earlier(path: Path | None) -> Plan | None:
    """Return the plan that is about to be overwritten, whose pins and notes are kept."""
    import planner

    if path is None or not path.exists():
        return None
    try:
        return planner.Plan.load(path)
    except planner.DocumentError:  # not a plan: --force allows replacing it
        return None
