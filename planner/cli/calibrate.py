"""`planner calibrate -o device.json`: measure this machine for plans with estimated times."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command, add_output, check_output
from planner.cli.console import Console

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add_command(
        subcommands, "calibrate", "Measure this device's rates for estimated step times.", run
    )
    parser.add_argument("--device", metavar="KIND", help="cpu, cuda ... (the accelerator, if any)")
    parser.add_argument("--name", default="", metavar="NAME", help="what to call it")
    add_output(parser, "the device")


def run(args: argparse.Namespace, console: Console) -> int:
    """Measure, print the row and save it where -o says."""
    check_output(args.output, args.force)
    with console.stages(1) as stage:
        stage("measuring")
        from planner.estimate.calibrate import calibrate

        text = calibrate(args.device, args.name).to_json()
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text, encoding="utf-8")
        console.note(f"wrote {args.output}; use it with --device-spec {args.output}")
    console.result(text.rstrip("\n"), lambda: text)
    return 0
