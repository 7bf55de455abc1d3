"""What every trainer's callback does with a plan: put it on, keep it beside checkpoints, log it.

Used by the callbacks of this room. No trainer is imported here.
"""

from __future__ import annotations

import warnings
from os import PathLike
from typing import Protocol

from torch import nn

import planner
from planner import Plan
from planner.budget import parse_budget
from planner.errors import InvalidInputsError, PlannerError, StalePlanError

_MIB = 2**20


class _Applied(Protocol):
    """What `planner.apply` returns."""

    @property
    def plan(self) -> Plan | None:
        """The plan at work, or None before the first one is made."""

    def remove(self) -> None:
        """Take the plan off."""


class PlannedTraining:
    """A model that a trainer trains under a plan.

    Args:
        plan: a plan or the path of one.
        budget_mb: in its place, the most memory of one step, as for `planner.plan`; the plan is
            made while the model trains.

    Raises:
        InvalidInputsError: neither was given, or both.
    """

    def __init__(
        self, plan: Plan | str | PathLike[str] | None, budget_mb: float | str | None
    ) -> None:
        if (plan is None) == (budget_mb is None):
            raise InvalidInputsError(
                "the callback needs either a plan or a budget to plan for",
                f"{0 if plan is None else 2} of the two given",
                "" if plan is None else "a plan holds its own budget",
                "pass budget_mb=300, or plan='net.plan.json'",
            )
        self._given = plan
        self._budget_mb = budget_mb
        self._applied: _Applied | None = None
        self._resumed: Plan | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan at work; None before training, and on the fly before the second step."""
        return self._applied.plan if self._applied is not None else None

    def resume(self, plan: Plan) -> None:
        """Begin with the plan of the checkpoint that training is resumed from.

        A plan that the user gave wins; so does a budget other than the stored plan's.
        """
        self._resumed = plan

    def start(self, model: nn.Module) -> None:
        """Put the plan on the model.

        Args:
            model: the model itself, not its wrapper.

        Raises:
            StalePlanError, InvalidModelError, DocumentError: see `planner.apply`.
        """
        self.stop()
        self._applied = self._take_up(model) or self._apply(model)

    def _apply(self, model: nn.Module) -> _Applied:
        if self._given is not None:
            return planner.apply(model, self._given)
        assert self._budget_mb is not None
        return planner.apply(model, budget_mb=self._budget_mb)

    def _take_up(self, model: nn.Module) -> _Applied | None:
        """Apply the checkpoint's plan; None where there is none that serves."""
        stored, self._resumed = self._resumed, None
        if stored is None or self._given is not None:
            return None
        assert self._budget_mb is not None
        if parse_budget(self._budget_mb).resolve(stored.plain_peak_bytes) != stored.budget_bytes:
            return None
        try:
            return planner.apply(model, stored)
        except StalePlanError as error:
            _warn(
                f"the checkpoint's plan is not used, a new one is made: {error.what}",
                error.numbers,
                error.cause,
                "nothing; the new plan is stored in the next checkpoint",
            )
            return None

    def figures(self) -> dict[str, float]:
        """Return the plan's budget and peak in MiB and its overhead as a share of the plain step.

        Empty before there is a plan.
        """
        plan = self.plan
        if plan is None:
            return {}
        peak = plan.measured_peak_bytes or plan.predicted_peak_bytes
        return {
            "planner/budget_mib": plan.budget_bytes / _MIB,
            "planner/peak_mib": peak / _MIB,
            "planner/overhead": plan.predicted_overhead_ratio,
        }

    def stop(self) -> None:
        """Take the plan off the model."""
        if self._applied is not None:
            self._applied.remove()
            self._applied = None


def switch_off_checkpointing(model: nn.Module) -> None:
    """Switch off the model's own gradient checkpointing, with a warning, where it is on.

    Two recomputations of the same blocks would only add time: the plan decides what is recomputed.
    """
    disable = getattr(model, "gradient_checkpointing_disable", None)
    if getattr(model, "is_gradient_checkpointing", False) and callable(disable):
        disable()
        _warn(
            f"gradient checkpointing of this {type(model).__name__} is switched off while a plan is"
            " on it",
            cause="gradient_checkpointing=True besides a plan recomputes every block twice",
            fix="leave gradient_checkpointing off in the trainer's arguments",
        )


def warn_of_compiling(what: str) -> None:
    """Warn that the trainer compiles the model, which a plan does not look into."""
    _warn(
        f"{what} compiles the model that has a plan on it",
        cause="compiled code does not pass through the plan: it may save nothing",
        fix="train without compiling, or without a plan",
    )


def _warn(what: str, numbers: str = "", cause: str = "", fix: str = "") -> None:
    text = str(PlannerError(what, numbers, cause, fix))
    warnings.warn(text, RuntimeWarning, stacklevel=3)
