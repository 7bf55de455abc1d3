"""How tests run: in how many processes, on one thread, with how many examples; fixtures of many."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from drawn import CI_EXAMPLES
from engine_runs import assert_clean
from hypothesis import HealthCheck, settings

EXAMPLES = {"quick": CI_EXAMPLES // 5, "ci": CI_EXAMPLES, "nightly": CI_EXAMPLES * 10}
"""How many examples a drawn test gets; `HYPOTHESIS_PROFILE` chooses."""

for _name, _count in EXAMPLES.items():
    settings.register_profile(
        _name,
        max_examples=_count,
        deadline=None,
        derandomize=_name == "quick",  # the same examples every time
        suppress_health_check=(
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ),
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The models are small, and the other cores run other tests.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # in processes that tests start


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Stay in one process unless all tests are run: to start others takes longer than a file."""
    return None if config.args_source is pytest.Config.ArgsSource.TESTPATHS else 0


LONGEST_FIRST = ("test_simulated.py", "test_scripts.py", "test_two_ranks.py", "test_capped.py")
"""Files whose tests wait for processes of their own: begun last, one keeps all waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; all others stay in their order."""
    items.sort(key=lambda item: item.path.name not in LONGEST_FIRST)


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Let garbage collections look at what a file's tests make, not at the libraries each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_warnings() -> Iterator[None]:
    """Ignore warnings, which models of this size draw from torch and from its users."""
    with warnings.catch_warnings():
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
