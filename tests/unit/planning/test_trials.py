"""The measured search: faster where predictions miss, never worse, and it keeps what was found."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
from daily import nightly_but
from trials_bench import BELIEVED_NS, TrueBench, believed, blocks, with_times
from zoo import ZOO, untouched

import planner
from planner.cli import main
from planner.documents import Plan, Profile
from planner.graph import Graph, resolve
from planner.planning.tested import plan_tested
from planner.planning.trials.bench import gains
from planner.planning.trials.search import plan_by_trials
from planner.search.measured.options import Measured
from planner.search.measured.progress import Progress
from planner.search.measured.study import without_optuna_logs
from planner.training_step.step import Step

SLOW = "1."
"""The units that take far longer than the profile believes."""


@pytest.fixture
def case() -> tuple[Step, Profile, int]:
    """Blocks that are believed to be alike, and a budget that two of them must give way to."""
    model, x = blocks()
    step, profile = believed(model, (x,))
    return step, profile, int(profile.plain_peak_bytes * 0.75)


def truth(profile: Profile) -> Profile:
    """Return the profile as it should be: what runs again in one block is thirty times slower."""
    return with_times(profile, lambda unit: BELIEVED_NS * (30 if unit.startswith(SLOW) else 1))


def replays_slow_unit(profile: Profile, plan: Plan) -> bool:
    """Return whether a plan runs an op of the slow block again."""
    graph = Graph.of(truth(profile))
    spans = resolve(graph, plan.segments)
    ops = (op for span in spans for op in graph.profile.ops[span.start : span.stop])
    return any(graph.profile.units[op.unit].name.startswith(SLOW) for op in ops)


def test_it_improves_on_its_seed_where_the_additive_model_misses(
    case: tuple[Step, Profile, int],
) -> None:
    step, profile, budget = case
    seed = plan_tested(step, profile, budget)
    assert replays_slow_unit(profile, seed)
    bench, told = TrueBench(step, truth(profile)), list[Progress]()
    plan = plan_by_trials(step, profile, budget, Measured(25, progress=told.append), bench=bench)
    assert bench.true_ns(plan) < 0.9 * bench.true_ns(seed)
    assert (plan.solver, plan.status) == ("optuna", "feasible")
    assert plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= budget
    assert plan.predicted_overhead_ratio >= seed.predicted_overhead_ratio  # by the wrong model
    assert plan.gap is None or seed.gap is None or plan.gap >= seed.gap
    assert told[-1].stopped in ("trials", "exhausted")
    assert told[-1].gain_ratio == pytest.approx(
        1 - bench.true_ns(plan) / bench.true_ns(seed), abs=1e-6
    )
    assert [p.done for p in told[:-1]] == list(range(1, told[-1].done + 1))
    found = planner.verify(step.model, plan, inputs=step.input_tensors)
    assert found.ok and found.replayed_ops > 0


@pytest.mark.parametrize("name", nightly_but(["gpt2"], ["gpt2", "resnet"]))
def test_it_is_never_worse_than_its_seed(name: str) -> None:
    pytest.importorskip(ZOO[name].library)
    model, inputs = ZOO[name].build()
    step, profile = believed(model, inputs)
    budget = int(profile.plain_peak_bytes * 0.8)

    class Unforeseen(TrueBench):
        """Adds to each plan what no profile tells."""

        def true_ns(self, plan: Plan) -> int:
            odd = zlib.crc32(repr(plan.segments).encode()) % 100
            return super().true_ns(plan) * (1000 + odd) // 1000

    bench = Unforeseen(step, profile)
    seed = plan_tested(step, profile, budget)
    plan = plan_by_trials(step, profile, budget, Measured(8), bench=bench)
    assert bench.true_ns(plan) <= bench.true_ns(seed)
    assert plan.measured_peak_bytes is not None and plan.measured_peak_bytes <= budget


def test_a_right_prediction_stays(case: tuple[Step, Profile, int]) -> None:
    step, profile, budget = case
    seed = plan_tested(step, profile, budget)
    assert (
        plan_by_trials(step, profile, budget, Measured(6), bench=TrueBench(step, profile)) == seed
    )


def test_what_peaks_over_the_budget_never_wins(case: tuple[Step, Profile, int]) -> None:
    step, profile, budget = case
    seed = plan_tested(step, profile, budget)

    class Heavy(TrueBench):
        def peak_bytes(self, plan: Plan) -> int:
            return budget + (plan.segments != seed.segments)

    bench = Heavy(step, truth(profile))
    assert plan_by_trials(step, profile, budget, Measured(5), bench=bench) == seed
    assert bench.readings == 0  # neither did it run for its time


def test_what_trains_otherwise_never_wins(case: tuple[Step, Profile, int]) -> None:
    step, profile, budget = case

    class Wrong(TrueBench):
        def is_right(self, plan: Plan) -> bool:
            return False

    bench = Wrong(step, truth(profile))
    plan = plan_by_trials(step, profile, budget, Measured(12), bench=bench)
    assert plan == plan_tested(step, profile, budget)


def test_slow_plans_are_stopped_early(case: tuple[Step, Profile, int]) -> None:
    step, profile, budget = case
    bench = TrueBench(step, profile)
    plan_by_trials(step, profile, budget, Measured(7), bench=bench)
    assert bench.readings < 6 * 6 * 2  # of six trials beside the seed's own


class Interrupted(TrueBench):
    """Somebody presses Ctrl-C while a trial runs."""

    at = 40

    def time_ns(self, plan: Plan) -> int:
        if self.readings == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return super().time_ns(plan)


def test_an_interrupt_returns_the_best_so_far(case: tuple[Step, Profile, int]) -> None:
    step, profile, budget = case
    bench, told = Interrupted(step, truth(profile)), list[Progress]()
    plan = plan_by_trials(step, profile, budget, Measured(200, progress=told.append), bench=bench)
    assert told[-1].stopped == "interrupted" and 1 < told[-1].done < 200
    assert bench.true_ns(plan) <= bench.true_ns(plan_tested(step, profile, budget))
    assert told[-1].best_ratio == 1.0 or plan.solver == "optuna"
    with pytest.warns(UserWarning, match="interrupted: the best of .* of 200 trials"):
        plan_by_trials(
            step, profile, budget, Measured(200), bench=Interrupted(step, truth(profile))
        )


def test_the_timeout_ends_it(case: tuple[Step, Profile, int]) -> None:
    step, profile, budget = case
    told = list[Progress]()
    plan_by_trials(step, profile, budget, Measured(50, 0.0, progress=told.append))
    assert (told[-1].stopped, told[-1].done) == ("timeout", 0)


def test_a_plain_step_that_fits_needs_no_search() -> None:
    model, x = blocks()
    told = list[Progress]()
    plan = planner.plan(
        model,
        budget_mb="100%",
        inputs=(x,),
        search=planner.Measured(trials=3, progress=told.append),
    )
    assert plan.status == "empty"
    assert [p.stopped for p in told] == ["nothing to search"]


@pytest.mark.parametrize("url", [False, True])
def test_the_real_step_leaves_no_trace_and_a_storage_goes_on(tmp_path: Path, url: bool) -> None:
    model, x = blocks(3)
    storage = f"sqlite:///{tmp_path}/trials.db" if url else tmp_path / "trials.log"
    told = list[Progress]()
    for trials in (2, 4):
        with untouched(model, None):
            plan = planner.plan(
                model,
                budget_mb="80%",
                inputs=(x,),
                search=planner.Measured(trials, storage=storage, progress=told.append),
                save=("0.act",),
            )
        assert plan.measured_peak_bytes is not None
        assert plan.measured_peak_bytes <= plan.budget_bytes
        assert plan.pins.save == ("0.act",)
        assert planner.verify(model, plan, inputs=(x,)).ok
    assert [p.done for p in told if not p.stopped] == [1, 2, 3, 4]


NET_FILE = """
from trials_bench import blocks
def net():
    model, x = blocks(3)
    return model, (x,)
"""


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blocks_net.py").write_text(NET_FILE)
    command = ["plan", "blocks_net.py:net", "--budget", "80%", "--search", "optuna"]
    command += ["--storage", "trials.log", "--json"]
    assert main([*command, "--trials", "3"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["kind"] == "planner.plan"
    assert "measured search: 3 of 3 trials, " in shown.err
    assert main([*command, "--trials", "3", "-q"]) == 0  # all are there already
    assert capsys.readouterr().err == ""
    assert main([*command, "--trials", "0"]) == 2
    assert main([*command, "--capped"]) == 2  # trials are compared with the plain step
    assert main(["plan", "blocks_net.py:net", "--budget", "80%", "--trials", "3"]) == 2


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trials": 0}, "trials of a measured search is too small"),
        ({"timeout": -1.0}, "timeout of a measured search is too small"),
        ({"timeout": float("nan")}, "timeout of a measured search is too small"),
        ({"search": "optuna"}, "unknown search method 'optuna'"),
        ({"device": "h100"}, "none can be measured"),
        ({"device": planner.Device(ranks=2)}, "none can be measured"),
        ({"storage": "no/such/folder/x.log"}, "the storage no/such/folder/x.log cannot be used"),
        ({"storage": "nosuch://driver"}, "the storage nosuch://driver cannot be used"),
    ],
)
def test_what_makes_no_sense_is_explained(given: dict[str, object], words: str) -> None:
    given = dict(given)
    model, x = blocks(3)
    with pytest.raises(planner.PlannerError, match=words) as error:
        limits = {
            name: given.pop(name) for name in ("trials", "timeout", "storage") if name in given
        }
        search = {"search": planner.Measured(**limits), **given}  # type: ignore[arg-type]
        planner.plan(model, budget_mb="80%", inputs=(x,), **search)  # type: ignore[arg-type]
    assert error.value.what and error.value.numbers and error.value.cause and error.value.fix


def test_a_stored_profile_alone_cannot_be_measured() -> None:
    model, x = blocks(3)
    profile = planner.profile(model, inputs=(x,))
    with pytest.raises(planner.PlannerError, match="none can be measured"):
        planner.plan(model, budget_mb="80%", profile=profile, search=planner.Measured())


def test_a_file_that_is_no_journal_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a journal\nat all\n")
    model, x = blocks(3)
    with pytest.raises(planner.PlannerError, match="cannot be used"):
        planner.plan(model, budget_mb="80%", inputs=(x,), search=planner.Measured(storage=file))
    assert file.read_text() == "not a journal\nat all\n"


def test_a_study_about_something_else_is_refused(
    tmp_path: Path, case: tuple[Step, Profile, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, profile, budget = case
    storage = str(tmp_path / "trials.log")
    monkeypatch.setattr("planner.planning.trials.search.study_name", lambda *_: "one name for all")
    plan_by_trials(step, profile, budget, Measured(1, storage=storage))
    with pytest.raises(planner.PlannerError, match="something else: budget") as error:
        plan_by_trials(step, profile, budget + 4096, Measured(1, storage=storage))
    assert f"{budget} B there" in error.value.numbers
    other, x = blocks(3)
    step, profile = believed(other, (x,))
    with pytest.raises(planner.PlannerError, match="something else: model"):
        plan_by_trials(step, profile, budget, Measured(1, storage=storage))


def test_another_budget_has_a_study_of_its_own(
    tmp_path: Path, case: tuple[Step, Profile, int]
) -> None:
    step, profile, budget = case
    told = list[Progress]()
    for more in (0, 4096):
        limits = Measured(1, storage=str(tmp_path / "trials.log"), progress=told.append)
        plan_by_trials(step, profile, budget + more, limits)
    assert [p.done for p in told if not p.stopped] == [1, 1]


def test_optuna_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    with without_optuna_logs():
        logging.getLogger("optuna").warning("hello")
    assert caplog.text == ""
    assert not logging.getLogger("optuna").disabled


def test_a_lucky_reading_is_no_gain() -> None:
    times = {"seed": [100, 100, 100, 100], "lucky": [60, 104, 104, 104], "fast": [90, 90, 95, 90]}

    class Bench:
        def time_ns(self, plan: str) -> int:
            return times[plan].pop()

    found = gains(Bench(), ("seed", "lucky", "fast"), 4)  # type: ignore[arg-type]
    assert found == pytest.approx([0.0, -0.04, 0.1])
