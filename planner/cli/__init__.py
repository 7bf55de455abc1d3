"""The `planner` command: the only room that prints or exits."""

from planner.cli.command import build_parser, main

__all__ = ["build_parser", "main"]
