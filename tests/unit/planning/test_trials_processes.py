"""A study of several processes: they finish it together, and one that is killed loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import planner

SEARCH = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
from trials_bench import TrueBench, believed, blocks, with_times
from planner.planning.trials.search import plan_by_trials
from planner.search.measured.options import Measured

plan, (trials, kill_after, together) = sys.argv[1], map(int, sys.argv[2:])
model, x = blocks(4)
step, profile = believed(model, (x,))
truth = with_times(profile, lambda unit: 10**6 * (30 if unit.startswith("1.") else 1))

class Bench(TrueBench):
    def peak_bytes(self, plan):
        if finished == kill_after:
            os.kill(os.getpid(), 9)  # in the middle of a trial
        return super().peak_bytes(plan)

finished = 0
def tell(progress):
    global finished
    finished += not progress.stopped
    print(finished, progress.done, flush=True)

limits = Measured(trials, storage="trials.log", progress=tell)
budget = profile.plain_peak_bytes * 3 // 4
Path(plan).with_suffix(".ready").touch()
while len(list(Path().glob("*.ready"))) < together:  # one that starts late finds nothing to do
    time.sleep(0.01)
plan_by_trials(step, profile, budget, limits, bench=Bench(step, truth)).save(plan)
"""


def start(
    folder: Path, plan: str, trials: int, kill_after: int = -1, together: int = 1
) -> subprocess.Popen[str]:
    """Start a process that searches in the study of a folder, once so many are ready to."""
    code = SEARCH.format(tests=str(Path(__file__).parents[2] / "support"))
    return subprocess.Popen(
        [sys.executable, "-c", code, plan, *map(str, (trials, kill_after, together))],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def study_of(folder: Path) -> optuna.Study:
    """Return the one study of a folder."""
    storage = JournalStorage(JournalFileBackend(str(folder / "trials.log")))
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage)


def finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that were measured to an end."""
    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


@pytest.mark.nightly
def test_two_processes_finish_one_study_together(tmp_path: Path) -> None:
    trials = 10
    running = [start(tmp_path, f"{name}.json", trials, together=2) for name in ("a", "b")]
    said = [process.communicate(timeout=120) for process in running]
    assert [p.returncode for p in running] == [0, 0], said
    own = [int(out.splitlines()[-1].split()[0]) for out, _ in said]
    study = study_of(tmp_path)
    assert sum(own) == len(finished(study))  # every trial was run by one of them
    assert trials <= sum(own) <= trials + 1  # the last one may begin in both
    assert min(own) >= 1
    points = [tuple(sorted(t.params.items())) for t in finished(study)]
    assert len(set(points)) >= len(points) - 2  # nearly all are different plans
    plans = [planner.Plan.load(tmp_path / f"{name}.json") for name in ("a", "b")]
    assert all((plan.measured_peak_bytes or 0) <= plan.budget_bytes for plan in plans)
    # The one that ends last knows either's best; the other may have ended before it was found.
    solvers = {plan.solver for plan in plans}
    assert "optuna" in solvers or study.best_value > 0.98  # what is faster by a noise is not taken


def test_a_killed_process_loses_no_finished_trial(tmp_path: Path) -> None:
    killed = start(tmp_path, "plan.json", 9, kill_after=4)
    out, err = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, err
    assert out.splitlines()[-1] == "4 4"
    before = finished(study_of(tmp_path))
    assert len(before) == 4
    again = start(tmp_path, "plan.json", 9)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert out.splitlines()[0] == "1 5"  # it goes on from there
    study = study_of(tmp_path)
    after = finished(study)
    assert after[:4] == before and len(after) == 9
    stale = study.get_trials(states=(TrialState.RUNNING,))
    assert len(stale) == 1  # what was killed is no finished trial, and nobody waits for it
    plan = planner.Plan.load(tmp_path / "plan.json")
    assert (plan.measured_peak_bytes or 0) <= plan.budget_bytes


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_charter_counts(first: int) -> None:
    from planner.search.measured.study import agree, is_stray, open_study

    study = open_study("a study", None)
    charters = [{"facts": {"model": "Net"}, "who": who} for who in (first, 1 - first)]
    for charter in charters:  # both looked before either had written
        study.enqueue_trial({}, user_attrs={"charter": charter, "seed": 0})
    assert agree(study, charters[1], {})["who"] == first
    assert [is_stray(study, trial) for trial in study.trials] == [False, True]
