"""`main`: the `planner` command, and the parser of all its subcommands.

One small module a subcommand; each has `add_parser(subcommands)` and `run(args, console) -> int`.
Exit codes: 0 success; 1 a negative result (infeasible, over budget, stale); 2 usage or a file that
cannot be read or written; 3 the tool or the model's own code failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from planner.cli import (
    batch,
    calibrate,
    check,
    demo,
    diff,
    explain,
    failures,
    plan,
    profile,
    report,
    show,
    sweep,
    verify,
)
from planner.cli.about import about
from planner.cli.console import Console

COMMANDS = (
    profile,
    plan,
    show,
    diff,
    sweep,
    report,
    explain,
    batch,
    verify,
    check,
    calibrate,
    demo,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's own) and return the exit code."""
    parser = build_parser()
    _offer_completions(parser)
    args = parser.parse_args(argv)
    if args.version:
        print(about(args.as_json))
        return 0
    if not hasattr(args, "run"):  # no subcommand
        parser.print_help()
        return failures.USAGE
    console = Console(as_json=args.json, quiet=args.quiet, verbose=args.verbose)
    with contextlib.ExitStack() as stack:
        if console.as_json:  # a model that prints must not break the JSON
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            code: int = args.run(args, console)
            console.flush()
        except BrokenPipeError:  # `planner show plan.json | head`
            console.abandon()
            code = 0
        except KeyboardInterrupt:
            code = 130
        except Exception as error:
            code = failures.report(error, console)
    return code


def _offer_completions(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, where argcomplete is installed."""
    if "_ARGCOMPLETE" in os.environ:
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = argparse.ArgumentParser(
        prog="planner",
        description="Find, apply and verify recomputation plans for PyTorch training steps.",
        epilog="exit codes: 0 success; 1 negative result; 2 usage or unreadable file; 3 failure",
    )
    parser.add_argument(
        "--version", action="store_true", help="show version, engine and folder, and exit"
    )
    parser.add_argument(
        "--json", action="store_true", dest="as_json", help="with --version: all as JSON"
    )
    subcommands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subcommands)
    return parser
