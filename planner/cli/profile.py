"""`planner profile MODEL`: run one plain training step and store what it did."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_model, add_output, check_output
from planner.cli.console import Console
from planner.cli.target import load_target

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add_command(
        subcommands, "profile", "Record one plain training step as a profile (JSON).", run
    )
    add_model(parser)
    add_output(parser, "the profile (default: a file in profiles/ that `plan` finds by itself)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Profile the model and save the profile."""
    import planner

    check_output(args.output, args.force)
    with console.stages(2) as stage:
        stage("loading the model")
        target = load_target(args.model)
        stage("running a plain step")
        profile = planner.profile(target.model, **target.step_arguments())
    path: Path = args.output or profile.default_path()
    profile.save(path, force=args.force)
    console.note(f"wrote {path}")
    console.result(str(profile), profile.to_json)
    return 0
