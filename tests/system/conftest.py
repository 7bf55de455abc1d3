"""Plans and profiles that several files read, and what training loops must leave as it was."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from zoo import small_net

import planner


@pytest.fixture(scope="session")
def profile() -> planner.Profile:
    """The small net's profile."""
    net, x = small_net()
    return planner.profile(net, inputs=(x,))


@pytest.fixture(scope="session")
def plan(profile: planner.Profile) -> planner.Plan:
    """A plan for the small net that recomputes, made from its profile alone."""
    net, _ = small_net()
    return planner.plan(net, budget_mb="65%", profile=profile)


@pytest.fixture(scope="session")
def made() -> planner.Plan:
    """A plan for the small net that recomputes and was measured."""
    net, x = small_net()
    plan = planner.plan(net, budget_mb="65%", inputs=(x,))
    assert plan.segments
    return plan


@pytest.fixture
def loop_leaves_nothing() -> Iterator[None]:
    """Take unexpected warnings for errors; fail if a mode stays on its stack."""
    warnings.simplefilter("error", RuntimeWarning)
    yield
    assert not _get_current_function_mode_stack()
    assert not _get_current_dispatch_mode_stack()
