"""The releases of torch that the engine was tested with; the only place that names them.

The engine works below autograd, on parts of torch that may change between minor releases.
"""

from __future__ import annotations

import functools
import warnings

import torch

OLDEST_TESTED = "2.13.0"
NEWEST_TESTED = "2.14.1"


def parsed(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what follows them (`2.14.1+cu130`: 2, 14, 1)."""
    release = version.partition("+")[0].split(".")[:3]
    digits = ("".join(c for c in part if c.isdigit()) for part in release)
    return tuple(int(part) for part in digits if part)


def untested(version: str) -> str:
    """Return what to tell the user of a torch release, or "" when it is within the tested range.

    A newer patch release of the newest minor release counts as tested.
    """
    found = parsed(version)
    if parsed(OLDEST_TESTED) <= found and found[:2] <= parsed(NEWEST_TESTED)[:2]:
        return ""
    age = "newer" if found > parsed(NEWEST_TESTED) else "older"
    return (
        f"planner was tested with torch {OLDEST_TESTED} to {NEWEST_TESTED}; torch {version} is "
        f"{age}. Planning goes on; planner.verify(model, plan) compares the gradients."
    )


@functools.cache
def warn_if_untested() -> None:
    """Warn once in a process when torch is outside the tested range."""
    message = untested(torch.__version__)
    if message:
        warnings.warn(message, stacklevel=3)
