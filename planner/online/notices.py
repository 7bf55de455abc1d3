"""What planning on the fly tells the user, each kind of news once."""

from __future__ import annotations

import warnings

from torch import nn

from planner.errors import PlannerError
from planner.online.situation import Situation

_OFFLINE = "plan from inputs: planner.plan(model, budget_mb=..., inputs=...)"


class News:
    """Warns, in the four parts of an error, since the training goes on."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def larger(self, now: Situation) -> None:
        """Inputs have grown past those planned for."""
        shapes = ", ".join(f"{spec.path} {list(spec.shape)}" for spec in now.calls[0])
        self._tell(
            "this step's inputs are larger than those planned for: it runs with every block"
            " recomputed, and the plan is made again before the next one",
            shapes,
            "batches or sequences of several lengths",
            "nothing; to plan once, let the first step be the largest",
        )

    def unplanned(self, model: nn.Module, error: Exception) -> None:
        """No plan could be made."""
        known = error if isinstance(error, PlannerError) else PlannerError(repr(error))
        self._tell(
            f"no plan could be made for this {type(model).__name__} while it trains; it goes on"
            f" with every block recomputed: {known.what}",
            known.numbers,
            known.cause,
            known.fix or _OFFLINE,
        )

    def _tell(self, what: str, numbers: str, cause: str, fix: str) -> None:
        if what not in self._told:
            self._told.add(what)
            text = str(PlannerError(what, numbers, cause, fix))
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def out_of_sight(problem: str) -> PlannerError:
    """Return the error for a step that could not be recorded."""
    return PlannerError("the recorded step cannot be planned from", cause=problem, fix=_OFFLINE)
