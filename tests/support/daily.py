"""Which of many alike cases each run tests, and which only the nightly one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def nightly_but(daily: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases for `parametrize`; those that are not daily are marked nightly."""
    each_run = list(daily)
    return [
        case if case in each_run else pytest.param(case, marks=pytest.mark.nightly)
        for case in cases
    ]
