"""mkdocs hook: fills the command-line page from the parsers, so that it cannot go stale."""

from __future__ import annotations

import argparse
from typing import Any

from planner.cli import build_parser

PAGE = "command-line.md"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append every subcommand's own help to the command-line page."""
    if page.file.src_uri != PAGE:
        return markdown
    return "\n\n".join((markdown, *_sections(build_parser())))


def _sections(parser: argparse.ArgumentParser) -> list[str]:
    parsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return [
        f"## planner {name}\n\n```\n{sub.format_help().rstrip()}\n```"
        for name, sub in parsers.choices.items()
    ]
