"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import planner

FOLDER = Path(planner.__file__).parent


def runs(path: Path) -> bool:
    """Tell whether a file has an example that runs everywhere."""
    examples = (line for line in path.read_text().splitlines() if ">>> " in line)
    return any("doctest: +SKIP" not in line for line in examples)


FILES = sorted(filter(runs, FOLDER.rglob("*.py")))


def module_of(path: Path) -> str:
    """Return a file's name as a module."""
    return ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [module_of(path) for path in FILES])
def test_the_examples_of_a_module_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0 and found.failed == 0
