"""`planner profile MODEL`: run one plain training step and store what it did."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_model, add_output, check_output, save
from planner.cli.console import Console
from planner.cli.estimating import add_estimate, autocasting, estimate_arguments
from planner.cli.target import load_target

if TYPE_CHECKING:
    from torch import nn

    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add_command(
        subcommands, "profile", "Record one plain training step as a profile (JSON).", run
    )
    add_model(parser)
    add_estimate(parser)
    add_output(parser, "the profile (default: a file in profiles/ that `plan` finds by itself)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Profile the model and save the profile."""
    import planner

    check_output(args.output, args.force)
    with console.stages(2) as stage:
        stage("loading the model")
        target = load_target(args.model)
        path: Path = args.output or default_path(target.model)
        check_output(path, args.force)
        stage("running a plain step")
        with autocasting(args, target.model):
            profile = planner.profile(
                target.model, **target.step_arguments(), **estimate_arguments(args)
            )
    save(profile, path, args.force, console)
    console.result(str(profile), profile.to_json)
    return 0


def default_path(model: nn.Module) -> Path:
    """Return the file in profiles/ in which `planner.plan` looks for the profile of this model."""
    from planner.training_step.fingerprint import fingerprint

    return Path("profiles") / f"{type(model).__name__}-{fingerprint(model)}.json"
