"""Warnings of planning on the fly, each given once."""

from __future__ import annotations

import warnings

from torch import nn

from planner.errors import PlannerError
from planner.online.situation import Situation

_OFFLINE = "plan from inputs: planner.plan(model, budget_mb=..., inputs=...)"


class Notices:
    """Warns, in the four parts of an error, since the training goes on."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def larger(self, now: Situation) -> None:
        """Warn that inputs have grown past those planned for."""
        shapes = ", ".join(f"{spec.path} {list(spec.shape)}" for spec in now.calls[0])
        self._warn(
            "this step's inputs are larger than those planned for: it runs with every block"
            " recomputed, and the plan is made again before the next one",
            shapes,
            "batches or sequences of several lengths",
            "nothing; to plan once, let the first step be the largest",
        )

    def unplanned(self, model: nn.Module, error: Exception) -> None:
        """Warn that no plan could be made."""
        known = error if isinstance(error, PlannerError) else PlannerError(repr(error))
        self._warn(
            f"no plan could be made for this {type(model).__name__} while it trains; it goes on"
            f" with every block recomputed: {known.what}",
            known.numbers,
            known.cause,
            known.fix or _OFFLINE,
        )

    def never_called(self, model_class: str, updates: int) -> None:
        """Warn that the model is updated, and that its own forward is never called."""
        self._warn(
            f"no plan can be made for this {model_class} while it trains: its forward is never"
            " called, so that every block is recomputed",
            f"0 calls in {updates} updates of its parameters",
            "the training step calls another module, as a `training_step` that calls `self.net`",
            "apply to the module that is called: planner.apply(model.net, budget_mb=...)",
        )

    def _warn(self, what: str, numbers: str, cause: str, fix: str) -> None:
        if what not in self._given:
            self._given.add(what)
            text = str(PlannerError(what, numbers, cause, fix))
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def not_recordable(problem: str) -> PlannerError:
    """Return the error for a step that could not be recorded."""
    return PlannerError("the recorded step cannot be planned from", cause=problem, fix=_OFFLINE)
