"""`planner show FILE`: print a stored plan or profile. Runs no model and needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.arguments import add_command
from planner.cli.console import Console

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    parser = add_command(subcommands, "show", "Print a stored plan or profile.", run)
    parser.add_argument("file", metavar="FILE", type=Path, help="a plan or profile (JSON)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Load the file and print it."""
    import planner

    document = planner.load(args.file)
    console.result(str(document), document.to_json)
    return 0
