"""The tested range of torch releases, and the one warning outside it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from planner.applier import manual_plan
from planner.replay import torch_versions
from planner.replay.torch_versions import NEWEST_TESTED, OLDEST_TESTED, parsed, untested

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("version", [OLDEST_TESTED, NEWEST_TESTED, "2.14.1+cu130", "2.14.9"])
def test_nothing_is_said_within_the_range(version: str) -> None:
    assert untested(version) == ""


@pytest.mark.parametrize(
    ("version", "age"), [("2.15.0", "newer"), ("3.0.0a0+git1", "newer"), ("2.12.1", "older")]
)
def test_outside_the_range_the_message_names_both_ends(version: str, age: str) -> None:
    message = untested(version)
    assert all(word in message for word in (OLDEST_TESTED, NEWEST_TESTED, version, age))


def test_one_warning_and_planning_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import planner

    torch_versions.warn_if_untested.cache_clear()
    monkeypatch.setattr(torch, "__version__", "9.1.0")
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), torch.randn(2, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with planner.apply(model, manual_plan(model, ["0"])):
                model(x).sum().backward()
    assert sum("planner was tested with torch" in str(w.message) for w in caught) == 1
    torch_versions.warn_if_untested.cache_clear()


def test_the_package_requires_the_oldest_tested_release() -> None:
    (floor,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert parsed(floor) == parsed(OLDEST_TESTED)[:2]
