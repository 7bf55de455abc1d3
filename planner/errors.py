"""Every error that planner raises on purpose, in one tree.

::

    PlannerError
      |-- InfeasibleBudgetError   no plan fits: the smallest reachable peak, and what is live at it
      |-- InvalidBudgetError      the budget is not a positive size
      |-- InvalidInputsError      example inputs are missing or of the wrong shape
      |-- InvalidModelError       the model cannot be planned, e.g. not a module
      |-- StepError               the training step raised, or its loss is not a scalar
      |-- StalePlanError          the model changed since the plan was made: which units
      |-- UnknownUnitError        a name that is no unit of the model, with close ones
      |-- ProfileNotFoundError    no stored profile for this model
      |-- DocumentError           a plan or profile file cannot be read or written: which field
      |-- PlanFileExistsError     a file is there already and was not overwritten
      `-- ReplayError             a segment could not be replayed: which unit

Each message has four parts, one a line: what failed, the numbers, the likely cause, the next
step. The parts stay available as attributes, and every error survives pickling, so it can cross
from a worker process. Subclasses with numbers of their own take them by keyword and write from
them any part that the caller leaves empty.
"""

from __future__ import annotations

from typing import Any

from planner.units import format_bytes_exact


class PlannerError(Exception):
    """Base of the tree; ``str(error)`` is the non-empty parts, one a line.

    Args:
        what: what failed, naming the unit, file or argument.
        numbers: what was found and what was needed, with units.
        cause: the likely cause.
        fix: the exact next step.

    >>> print(PlannerError("the step failed", "1 loss of 4 values", fix="return loss.mean()"))
    the step failed
      numbers: 1 loss of 4 values
      next step: return loss.mean()
    """

    def __init__(self, what: str, numbers: str = "", cause: str = "", fix: str = "") -> None:
        self.what = what
        self.numbers = numbers
        self.cause = cause
        self.fix = fix
        super().__init__(_message(what, numbers, cause, fix))

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with the message alone and lose the attributes.
        return _rebuild, (type(self), str(self), dict(self.__dict__))


def _message(what: str, numbers: str, cause: str, fix: str) -> str:
    parts = (("numbers", numbers), ("likely cause", cause), ("next step", fix))
    return "\n".join([what, *(f"  {label}: {text}" for label, text in parts if text)])


def _rebuild(kind: type[PlannerError], message: str, state: dict[str, object]) -> PlannerError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class InfeasibleBudgetError(PlannerError):
    """No plan reaches the budget.

    Attributes:
        budget_bytes: the budget asked for.
        min_peak_bytes: the smallest peak that was found; a budget of as much succeeds.
        holders: what is alive at that peak, as ``(label, bytes)``, largest first.
    """

    def __init__(
        self,
        what: str = "",
        numbers: str = "",
        cause: str = "",
        fix: str = "",
        *,
        budget_bytes: int,
        min_peak_bytes: int,
        holders: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.budget_bytes = budget_bytes
        self.min_peak_bytes = min_peak_bytes
        self.holders = tuple(holders)
        budget, floor = format_bytes_exact(budget_bytes), format_bytes_exact(min_peak_bytes)
        super().__init__(
            what or "no recomputation plan fits the budget",
            numbers or f"budget {budget}, smallest peak found {floor}",
            cause or _holders_text(self.holders),
            fix or f"set a budget of at least {floor}, or use a smaller batch",
        )


def _holders_text(holders: tuple[tuple[str, int], ...]) -> str:
    if not holders:
        return "nothing more that is live at the peak can be recomputed"
    named = ", ".join(f"{label} {format_bytes_exact(size)}" for label, size in holders)
    return f"live at that peak, and not recomputable: {named}"


class InvalidBudgetError(PlannerError):
    """The budget is zero, negative, not finite or not understood."""


class InvalidInputsError(PlannerError):
    """The example inputs are missing, empty or not what the model takes."""


class InvalidModelError(PlannerError):
    """The object given as a model cannot be planned."""


class StepError(PlannerError):
    """The training step raised, or its loss is not a scalar that requires a gradient."""


class StalePlanError(PlannerError):
    """The plan was made for another version of the model.

    Attributes:
        units: names of the units that changed, are missing or are new.
    """

    def __init__(
        self,
        what: str = "",
        numbers: str = "",
        cause: str = "",
        fix: str = "",
        *,
        units: tuple[str, ...] = (),
    ) -> None:
        self.units = tuple(units)
        super().__init__(
            what or "the plan does not fit this model: " + _listed(self.units, "its units differ"),
            numbers or (f"{len(self.units)} changed units" if self.units else ""),
            cause or "the model or its configuration changed after the plan was made",
            fix or "plan again with planner.plan(model, ...)",
        )


class UnknownUnitError(PlannerError):
    """A name that is no unit of the model.

    Attributes:
        name: the name that was given.
        near: names of units that look like it.
    """

    def __init__(
        self,
        what: str = "",
        numbers: str = "",
        cause: str = "",
        fix: str = "",
        *,
        name: str,
        near: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.near = tuple(near)
        super().__init__(
            what or f"no unit of the model is named {name!r}",
            numbers or f"0 units of that name, {len(self.near)} that look like it",
            cause or "a misspelt name, or a module that the step does not call",
            fix or "use one of: " + _listed(self.near, "the names in model.named_modules()"),
        )


class ProfileNotFoundError(PlannerError):
    """No stored profile describes this model."""


class DocumentError(PlannerError):
    """A plan or profile cannot be read or written.

    Attributes:
        path: the file, or empty for text that came from elsewhere.
        field: where in the document, e.g. ``segments[3].saved_bytes``; empty for the whole.
    """

    def __init__(
        self,
        what: str,
        numbers: str = "",
        cause: str = "",
        fix: str = "",
        *,
        path: str = "",
        field: str = "",
    ) -> None:
        self.path = path
        self.field = field
        super().__init__(what, numbers, cause, fix)


class PlanFileExistsError(PlannerError):
    """The file exists and ``force`` was not given.

    Attributes:
        path: the file.
    """

    def __init__(
        self, what: str = "", numbers: str = "", cause: str = "", fix: str = "", *, path: str
    ) -> None:
        self.path = path
        super().__init__(
            what or f"{path} exists and was not overwritten",
            numbers,
            cause or "an earlier run wrote it",
            fix or "choose another path, or pass force=True (--force) to overwrite it",
        )


class ReplayError(PlannerError):
    """A segment could not be replayed in backward.

    Attributes:
        unit: the unit at which the replay failed.
    """

    def __init__(
        self, what: str, numbers: str = "", cause: str = "", fix: str = "", *, unit: str = ""
    ) -> None:
        self.unit = unit
        super().__init__(what, numbers, cause, fix)


def _listed(names: tuple[str, ...], otherwise: str, most: int = 8) -> str:
    if not names:
        return otherwise
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
