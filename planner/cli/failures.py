"""Exceptions as messages and exit codes."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any

from planner.cli.console import Console
from planner.errors import InfeasibleBudgetError, PlannerError, ReplayError, StalePlanError

NO, USAGE, FAILURE = 1, 2, 3


def exit_code(error: Exception) -> int:
    """Return 1 for a negative result, 2 for wrong usage or files, 3 for a failure."""
    if isinstance(error, (InfeasibleBudgetError, StalePlanError)):
        return NO
    if isinstance(error, ReplayError):
        return FAILURE
    return USAGE if isinstance(error, (PlannerError, OSError)) else FAILURE


def report(error: Exception, console: Console) -> int:
    """Print `error` (a traceback only when verbose) and return its exit code."""
    if console.verbose:
        console.complain("".join(traceback.format_exception(error)))
    console.complain(f"planner: {_message(error)}")
    if not isinstance(error, (PlannerError, OSError)) and not console.verbose:
        console.complain("(run again with -v for the traceback)")
    if console.as_json:
        document = json.dumps({"error": _facts(error)}, indent=2)
        console.result("", lambda: document)
        console.flush()
    return exit_code(error)


def _message(error: Exception) -> str:
    if isinstance(error, PlannerError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}"
    return f"{type(error).__name__}: {error}"


def _facts(error: Exception) -> dict[str, Any]:
    """Return the error's type, message and plain attributes."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": _message(error)}
    attributes: Mapping[str, Any] = getattr(error, "__dict__", {})
    for name, value in attributes.items():
        if not name.startswith("_") and isinstance(value, (str, int, float, tuple, list)):
            facts[name] = value
    return facts
