"""How a search from a profile goes: its name, and `Capped`, a value that `planner.plan` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from planner.errors import PlannerError

Method = Literal["auto", "dp", "milp"]
METHODS: tuple[Method, ...] = get_args(Method)


def check_method(method: str) -> None:
    """Raise unless a search is called so.

    Raises:
        PlannerError: none is.
    """
    if method not in METHODS:
        raise PlannerError(
            f"unknown search method {method!r}",
            numbers=f"search={method!r}; {len(METHODS)} have names: {', '.join(METHODS)}",
            cause="a misspelt name, or the search that measures steps, which is no name",
            fix="use one of " + ", ".join(METHODS) + ", or planner.Measured(trials=50)",
        )


@dataclass(frozen=True, slots=True)
class Capped:
    """Planning that runs no step which needs more memory than the budget, a plain one included.

    Attributes:
        method: "auto", "dp" or "milp": see `planner.plan`.

    Raises:
        PlannerError: no such method.
    """

    method: Method = "auto"

    def __post_init__(self) -> None:
        check_method(self.method)
