"""Hypothesis profiles (`ci`, and `nightly` with HYPOTHESIS_PROFILE=nightly) and shared fixtures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_runs import assert_clean, one_thread
from hypothesis import HealthCheck, settings

_UNCHECKED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile("ci", max_examples=200, deadline=None, suppress_health_check=_UNCHECKED)
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, suppress_health_check=_UNCHECKED
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def single_thread() -> Iterator[None]:
    """Run on one thread, which is faster for tiny models, and without the warnings about them."""
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail if the test leaves a dispatch mode or a saved-tensor hook behind."""
    yield
    assert_clean()


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, without a folder of stored profiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)
