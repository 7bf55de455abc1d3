"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import PlanFileExistsError

if TYPE_CHECKING:
    from planner import Plan, Profile
    from planner.cli.console import Console

    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]
    Run = Callable[[argparse.Namespace, Console], int]

MODEL_HELP = (
    "package.module:callable or path/file.py:callable; the callable returns a model, "
    "(model, inputs) or (model, inputs, loss_fn)"
)


def add_command(
    subcommands: Subcommands, name: str, summary: str, run: Run
) -> argparse.ArgumentParser:
    """Add the subcommand `name` with the flags that all have (--json, -q, -v)."""
    parser = subcommands.add_parser(name, help=summary, description=summary)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="no notes, no progress")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the MODEL argument."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Add -o and --force."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=f"write {what} here")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def check_output(path: Path | None, force: bool) -> None:
    """Raise PlanFileExistsError now rather than after minutes of work."""
    if path is not None and path.exists() and not force:
        raise PlanFileExistsError(path=str(path))


def save(document: Plan | Profile, path: Path, force: bool, console: Console) -> None:
    """Write a document, making its folder first, and say so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document.save(path, force=force)
    console.note(f"wrote {path}")
