"""The `planner` command itself."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

import planner
from planner.cli import main

FOLDER = str(Path(planner.__file__).parent)


def test_without_a_subcommand_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("usage: planner") and "explain" in shown and "exit codes" in shown


def test_the_version_comes_with_where_it_was_loaded_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"planner {planner.__version__} (engine: ") and FOLDER in shown
    assert main(["--version", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["loaded_from"] == FOLDER and {"engine", "python", "torch"} <= facts.keys()


def test_a_shell_gets_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    stub = types.SimpleNamespace(autocomplete=asked.append)
    monkeypatch.setitem(sys.modules, "argcomplete", stub)
    main([])
    assert asked == []
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    main([])
    assert len(asked) == 1
