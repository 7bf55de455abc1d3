"""`Measured`: the limits of a search that measures steps, a value that `planner.plan` takes.

No torch and no Optuna here: the command line and the API build it before either is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, fspath

from planner.errors import PlannerError
from planner.search.measured.progress import Progress

SOLVER = "optuna"
"""How plans name the search that found them."""
TRIALS = 50
"""Trials of a study where nobody says how many."""

Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """Search on measured step times, by Optuna, from the best predicted plan on.

    Attributes:
        trials: how many plans to measure, over all processes of the study.
        timeout: seconds after which no further trial begins; None for no limit. Ctrl-C ends the
            search, too, with the best plan so far.
        storage: a journal file ("trials.log") or a URL ("sqlite:///trials.db") from which the study
            goes on, and which several processes may share; None for neither.
        progress: called with a `Progress` after each trial, and once at the end.

    Raises:
        PlannerError: fewer than one trial, or less time than none.
    """

    trials: int = TRIALS
    timeout: float | None = None
    storage: str | PathLike[str] | None = None
    progress: Report | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("trials", self.trials, 1), ("timeout", self.timeout, 0)):
            if value is not None and not value >= least:
                raise PlannerError(
                    f"{name} of a measured search is too small",
                    numbers=f"{name}={value!r}, at least {least}",
                    cause="a search without trials measures nothing",
                    fix=f"pass planner.Measured({name}={TRIALS}), or leave {name} out",
                )

    @property
    def storage_name(self) -> str | None:
        """The storage as text."""
        return None if self.storage is None else fspath(self.storage)

    def report(self, progress: Progress) -> None:
        """Pass on the progress; warn of an interrupt that would not be seen otherwise."""
        if self.progress is not None:
            self.progress(progress)
        elif progress.stopped == "interrupted":
            warnings.warn(
                f"interrupted: the best of {progress.done} of {progress.total} trials is returned",
                stacklevel=2,
            )


def check_can_run(has_step: bool, derived: bool) -> None:
    """Raise unless the plain step can be run, as a measured search must.

    Raises:
        PlannerError: it cannot.
    """
    if has_step and not derived:
        return
    given, cause = (
        ("a device or a meta model", "the step is derived and never runs")
        if derived
        else ("no inputs and no step", "there is nothing to run")
    )
    raise PlannerError(
        "search=planner.Measured() measures steps, and here none can be measured",
        numbers=f"given: {given}",
        cause=cause,
        fix='pass inputs=... or step=... on the device at hand, or use search="auto"',
    )
