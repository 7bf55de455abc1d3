"""One Optuna study: where it is stored, who wrote its charter, how many of its trials are finished.

THE FIRST CHARTER COUNTS. Trials are numbered in the order in which the storage took them, so
processes that begin at the same time agree without a lock: each adds a trial that carries its
charter, and the one with the least number is the study's.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from planner.errors import PlannerError

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
CHARTER, SEED = "charter", "seed"
"""User attributes of trials: the charter; the number of the plan to begin with that a trial is."""
STALE_S = 600
"""A trial that has run for so long has lost its process: its plan is free to be tried again."""
_SQLITE_WAIT_S = 60
"""How long a process waits for the others to let go of a SQLite file."""
READINGS = 2
"""Of a trial before it may be stopped: one alone is too easily disturbed."""
BEHIND = 0.04
"""A trial that is slower than the seed by more than this, or than the best by twice as much (which
may owe its place to luck), will not catch up by further readings."""


class BehindPruner(BasePruner):
    """Stops a trial whose partial time is well behind."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether to stop it."""
        step = trial.last_step
        if step is None or step + 1 < READINGS:
            return False
        values = [t.value for t in trials_of(study, TrialState.COMPLETE) if t.value is not None]
        best = min(values, default=1.0)
        return trial.intermediate_values[step] > min(1.0 + BEHIND, best + 2 * BEHIND)


def open_study(name: str, storage: str | None) -> optuna.Study:
    """Return the study of a name, made where there is none.

    Args:
        name: its name.
        storage: None (in memory), a URL, or the path of a journal file.

    Raises:
        PlannerError: the storage cannot be opened.
    """
    try:
        return optuna.create_study(
            storage=_storage(storage),
            study_name=name,
            pruner=BehindPruner(),
            load_if_exists=True,
        )
    except Exception as error:  # of whichever driver the URL asks for
        raise PlannerError(
            f"the storage {storage} cannot be used",
            numbers=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            cause="no such folder, no right to write there, another kind of file, or a database"
            " driver that is not installed",
            fix="name a journal file (trials.log) in a folder that exists, or a URL such as"
            " sqlite:///trials.db",
        ) from error


def agree(study: optuna.Study, mine: dict[str, Any], params: dict[str, object]) -> dict[str, Any]:
    """Return the study's charter: the one that is there, or `mine`, added with its first seed.

    Raises:
        PlannerError: the study is about something else; the facts that differ are named.
    """
    found = _first_charter(study)
    if found is None:
        study.enqueue_trial(params, user_attrs={CHARTER: mine, SEED: 0})
        found = _first_charter(study)
    assert found is not None, "it was just added"
    theirs: dict[str, Any] = found.user_attrs[CHARTER]
    _check_facts(study.study_name, theirs["facts"], mine["facts"])
    return theirs


def is_stray(study: optuna.Study, trial: FrozenTrial | optuna.Trial) -> bool:
    """Return whether a trial carries a charter that came second: it is no trial of this study."""
    first = _first_charter(study)
    return CHARTER in trial.user_attrs and first is not None and first.number != trial.number


def add_seeds(study: optuna.Study, points: list[dict[str, object]]) -> None:
    """Put the plans to begin with in the queue, those that are not there or were lost."""
    known = {t.user_attrs[SEED] for t in trials_of(study) if SEED in t.user_attrs}
    for number, point in enumerate(points):
        if number not in known:
            study.enqueue_trial(point, user_attrs={SEED: number})


def trials_of(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Return the trials in these states; when none is named, all but failed and lost ones."""
    asked = states or tuple(s for s in TrialState if s is not TrialState.FAIL)
    found = study.get_trials(deepcopy=False, states=asked)
    return found if states else [t for t in found if not _is_lost(t)]


def _is_lost(trial: FrozenTrial) -> bool:
    began = trial.datetime_start
    if trial.state is not TrialState.RUNNING or began is None:
        return False
    return (datetime.now() - began).total_seconds() > STALE_S


@contextmanager
def without_optuna_logs() -> Iterator[None]:
    """Keep Optuna's log and its remarks on experimental parts to itself."""
    logger = logging.getLogger("optuna")
    before, logger.disabled = logger.disabled, True
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"optuna\.")
            yield
    finally:
        optuna.logging.set_verbosity(level)
        logger.disabled = before


def _storage(where: str | None) -> BaseStorage:
    if where is None:
        return InMemoryStorage()
    if "://" not in where:
        return JournalStorage(JournalFileBackend(where))
    waits = {"connect_args": {"timeout": _SQLITE_WAIT_S}} if where.startswith("sqlite") else {}
    return RDBStorage(where, engine_kwargs=waits)


def _first_charter(study: optuna.Study) -> FrozenTrial | None:
    carriers = (t for t in study.get_trials(deepcopy=False) if CHARTER in t.user_attrs)
    return min(carriers, key=lambda t: t.number, default=None)


def _check_facts(name: str, theirs: Mapping[str, str], mine: Mapping[str, str]) -> None:
    differ = [key for key in {**theirs, **mine} if theirs.get(key) != mine.get(key)]
    if differ:
        raise PlannerError(
            f"the study {name!r} in this storage is about something else: {', '.join(differ)}",
            numbers="; ".join(f"{k}: {mine.get(k)} here, {theirs.get(k)} there" for k in differ),
            cause="its trials were run on another model, step, budget or version of torch",
            fix="name another storage, or delete that study",
        )
