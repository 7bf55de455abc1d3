"""Arguments and progress of the measured search, for `plan`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from planner.cli.console import Console

if TYPE_CHECKING:
    from planner.search.measured.progress import Progress

    Report = Callable[[Progress], None]

WHY = {
    "trials": "",
    "timeout": "out of time, ",
    "interrupted": "interrupted, ",
    "exhausted": "the search space is exhausted, ",
}


def add_trials(parser: argparse.ArgumentParser) -> None:
    """Add --trials, --timeout and --storage."""
    optuna = parser.add_argument_group("with --search optuna, which measures plans on the step")
    optuna.add_argument(
        "--trials", type=int, metavar="N", help="plans to measure, all processes together (50)"
    )
    optuna.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="start no further trial after this time"
    )
    optuna.add_argument(
        "--storage",
        metavar="FILE|URL",
        help="resume from, and share, this journal file (trials.log) or sqlite:///trials.db",
    )


def search_of(args: argparse.Namespace, progress: Report | None) -> Any:
    """Return `search` for `planner.plan`.

    Raises:
        PlannerError: a limit makes no sense, or belongs to another search.
    """
    import planner

    names = ("trials", "timeout", "storage")
    limits = {n: value for n in names if (value := getattr(args, n)) is not None}
    if args.search == "optuna" and not args.capped:
        return planner.Measured(progress=progress, **limits)
    for name, value in limits.items():
        raise planner.PlannerError(
            f"--{name} was given, and --search {args.search} runs no trials",
            numbers=f"--{name} {value}",
            cause=f"only the measured search has --{name}",
            fix=f"pass --search optuna, or leave --{name} out",
        )
    if args.search == "optuna":
        raise planner.PlannerError(
            "--capped was given, and --search optuna runs the plain step",
            numbers="--capped --search optuna",
            cause="a measured search compares plans with the plain step",
            fix="leave one of the two out",
        )
    return planner.Capped(args.search) if args.capped else args.search


@contextmanager
def trial_bar(args: argparse.Namespace, console: Console) -> Iterator[Report | None]:
    """Show a bar of trials and, at the end, their result; other searches show nothing."""
    if args.search != "optuna":
        yield None
        return
    bar = None

    def report(progress: Progress) -> None:
        nonlocal bar
        bar = bar or console.bar(progress.total)
        bar.set_description_str(f"trials, best {progress.best_ratio:.3f} of the seed's time")
        bar.update(progress.done - bar.n)
        if progress.stopped:
            bar.close()
            console.note(outcome(progress))

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()


def outcome(progress: Progress) -> str:
    """Return what a measured search found, in a sentence."""
    if progress.stopped == "nothing to search":
        return "measured search: the plan has no segment to vary, and is returned as it is"
    found = "none is faster than the seed, which is returned"
    if progress.gain_ratio:
        found = f"the best takes {progress.gain_ratio:.1%} less time a step than the seed"
    done = f"{progress.done} of {progress.total} trials"
    return f"measured search: {WHY[progress.stopped]}{done}, {found}"
