"""The `planner` command itself."""

from __future__ import annotations

import pytest

from planner.cli import main


def test_without_a_subcommand_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("usage: planner") and "explain" in shown and "exit codes" in shown
