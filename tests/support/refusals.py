"""Asserts that a call raises an error of four parts."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

import planner


def refused(
    kind: type[planner.PlannerError], call: Callable[[], object], *said: str
) -> planner.PlannerError:
    """Assert that a call raises this error, in full, with these words in it."""
    with pytest.raises(planner.PlannerError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    for part in ("what", "numbers", "cause", "fix"):
        assert getattr(error, part), f"no {part} in: {error}"
    for words in said:
        assert words in str(error), f"{words!r} not in: {error}"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and vars(again).keys() == vars(error).keys()
    return error
