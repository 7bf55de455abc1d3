"""What a measured search is asked for, and what it tells while it runs. No torch, no Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, fspath

from planner.documents.progress import Progress
from planner.errors import PlannerError

METHOD = "optuna"
TRIALS = 50
"""Trials of a study where nobody says how many."""


Tell = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The limits of a measured search.

    Attributes:
        trials: how many, over all processes of the study.
        timeout_s: seconds after which no further trial begins; None for no limit.
        storage: a journal file or a storage URL, to resume and share; None for neither.
        tell: called after each trial, and once when all are done.
    """

    trials: int = TRIALS
    timeout_s: float | None = None
    storage: str | None = None
    tell: Tell | None = None

    def say(self, progress: Progress) -> None:
        """Pass on the progress; an interrupt that nobody listens for is worth a warning."""
        if self.tell is not None:
            self.tell(progress)
        elif progress.stopped == "interrupted":
            warnings.warn(
                f"interrupted: the best of {progress.done} of {progress.total} trials is returned",
                stacklevel=2,
            )


def wanted(
    search: str,
    trials: int | None,
    timeout: float | None,
    storage: str | PathLike[str] | None,
    progress: Tell | None,
) -> Wanted | None:
    """Return what `planner.plan` was asked for; None for a search that runs no trials.

    Raises:
        PlannerError: a limit makes no sense, or belongs to another search.
    """
    given = {"trials": trials, "timeout": timeout, "storage": storage, "progress": progress}
    if search != METHOD:
        for name, value in given.items():
            if value is not None:
                raise PlannerError(
                    f"{name} was given, and search={search!r} runs no trials",
                    numbers=f"{name}={value!r}",
                    cause=f"only the measured search has {name}",
                    fix=f'pass search="{METHOD}", or leave {name} out',
                )
        return None
    for name, value, least in (("trials", trials, 1), ("timeout", timeout, 0)):
        if value is not None and not value >= least:
            raise PlannerError(
                f"{name} of a measured search is too small",
                numbers=f"{name}={value!r}, at least {least}",
                cause="a search without trials measures nothing",
                fix=f"pass {name}={TRIALS}, or leave it out",
            )
    where = None if storage is None else fspath(storage)
    return Wanted(TRIALS if trials is None else trials, timeout, where, progress)


def check_can_run(has_step: bool, derived: bool, capped: bool) -> None:
    """Raise unless the plain step can be run, as a measured search must.

    Raises:
        PlannerError: it cannot.
    """
    if has_step and not derived and not capped:
        return
    reason = (
        ("device_spec, shards or a meta model", "the step is derived and never runs")
        if derived
        else ("capped", "plans are compared with the plain step, which is not to run")
        if capped
        else ("no inputs and no step", "there is nothing to run")
    )
    raise PlannerError(
        f'search="{METHOD}" measures steps, and here none can be measured',
        numbers=f"given: {reason[0]}",
        cause=reason[1],
        fix='pass inputs=... or step=... on the device at hand, or use search="auto"',
    )
