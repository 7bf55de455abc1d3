"""Hypothesis profiles (`ci`, and `nightly` with HYPOTHESIS_PROFILE=nightly) and shared fixtures."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
from engine_runs import assert_clean, one_thread
from hypothesis import HealthCheck, settings

_QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile("ci", max_examples=200, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("nightly", max_examples=2000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def quiet_thread() -> Iterator[None]:
    """One thread, which is faster for tiny models, and none of the warnings about them."""
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def quiet(quiet_thread: None) -> Iterator[None]:
    """The same; and the test leaves no dispatch mode and no saved-tensor hook behind."""
    yield
    assert_clean()
