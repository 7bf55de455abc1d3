"""The measured search: Optuna over boundaries and keep levels, on the step's own time and peak.

For what no model predicts well: caches, allocators, kernels that are slower when they run again.
It begins with the plan that `plan_tested` returns, measures it and its neighbours, and
returns another only where a last comparison, taken in turn with the seed, finds it faster. Every
plan that is returned was probed, compared with plain and measured within the budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import optuna
from optuna.trial import TrialState

from planner.documents import Pins, Plan, Profile
from planner.graph import Graph, Span, resolve
from planner.planning.tested import plan_tested
from planner.planning.trials.bench import Bench, StepBench, gains
from planner.planning.trials.trial import Trials
from planner.search.measured.charter import Charter, facts_of, study_name
from planner.search.measured.levels import space_of
from planner.search.measured.novelty import Known, is_new
from planner.search.measured.options import Measured
from planner.search.measured.points import Points
from planner.search.measured.progress import Progress
from planner.search.measured.sampler import PlanSampler
from planner.search.measured.seeds import runners_up
from planner.search.measured.space import Point
from planner.search.measured.study import (
    FINISHED,
    SEED,
    add_seeds,
    agree,
    is_stray,
    open_study,
    trials_of,
    without_optuna_logs,
)
from planner.search.pins import wishes
from planner.training_step.step import Step

MOST_SEEDS = 6
"""Plans to begin with: the best by prediction and its neighbours."""
FINALISTS = 3
"""The best trials, which run against the seed once more."""
FINAL_ROUNDS = 16
LEAST_GAIN = 0.005
"""What a plan must save of the seed's step to be preferred: less is within the noise."""


def plan_by_trials(
    step: Step,
    profile: Profile,
    budget_bytes: int,
    limits: Measured,
    *,
    pins: Pins = Pins(),  # noqa: B008  # frozen
    bench: Bench | None = None,
) -> Plan:
    """Return the fastest plan that was measured within the budget.

    Args:
        step: the training step.
        profile: its profile.
        budget_bytes: most live bytes.
        limits: trials, time and storage.
        pins: units that the user wants saved or recomputed.
        bench: what runs plans; the step itself by default.

    Raises:
        InfeasibleBudgetError: no plan reaches the budget, predicted or measured.
        PlannerError: the storage cannot be used, or its study is about something else.
    """
    graph = Graph.of(profile)
    seed = plan_tested(step, profile, budget_bytes, pins=pins, graph=graph)
    if not seed.segments or any(s.runtime != "replay" for s in seed.segments):
        limits.report(Progress(0, limits.trials, 1.0, "nothing to search"))
        return seed
    with without_optuna_logs():
        race = _race(graph, seed, limits, pins, bench or StepBench(step))
        stopped = race.run()
        return race.winner(stopped)


def _race(graph: Graph, seed: Plan, limits: Measured, pins: Pins, bench: Bench) -> _Race:
    """Join the study, or found it."""
    spans = resolve(graph, seed.segments)
    excluded = seed.exclusions[len(graph.profile.excluded) :]
    wished = wishes(graph, pins, excluded)
    over = max(0, (seed.measured_peak_bytes or 0) - seed.predicted_peak_bytes)
    limit = seed.budget_bytes - over  # the simulator may miss by a little
    others = runners_up(graph, limit, MOST_SEEDS, pins=pins, exclusions=excluded)
    seeds = tuple(dict.fromkeys((spans, *(c.spans for c in others))))[:MOST_SEEDS]
    mine = Charter(facts_of(graph, seed.budget_bytes), space_of(graph, wished, seeds), seeds)
    study = open_study(study_name(graph.profile, seed.budget_bytes, pins), limits.storage_name)
    first = Points(graph, wished, mine.space).remember(spans)
    found = Charter.from_dict(agree(study, mine.to_dict(graph), first), graph)
    points = Points(graph, wished, found.space)
    starts = [points.remember(spans) for spans in found.seeds]
    add_seeds(study, starts)
    trials = Trials(graph, points, seed, limit, bench)
    return _Race(study, trials, starts, found.seeds[0], limits)


@dataclass(frozen=True, slots=True)
class _Race:
    """One process's part of a study."""

    study: optuna.Study
    trials: Trials
    starts: list[dict[str, object]]
    reference: tuple[Span, ...]
    limits: Measured

    def run(self) -> str:
        """Run trials until the study has enough; return why it ended."""
        began, known = time.monotonic(), list[Known]()
        trials, reference = self.trials, self.trials.plan(self.reference)

        def is_worth_it(point: Point) -> bool:
            return is_new(trials.known(point), known)

        number = len(trials_of(self.study))  # another one for each process that joins
        sampler = PlanSampler(trials.points.space, trials.foresee, is_worth_it, self.starts, number)
        self.study.sampler = sampler
        trial = None
        try:
            while self._done() < self.limits.trials:
                timeout = self.limits.timeout
                if timeout is not None and time.monotonic() - began >= timeout:
                    return "timeout"
                known[:] = trials.measured(self.study)
                trial = self.study.ask(sampler.distributions)
                if SEED not in trial.user_attrs and not is_worth_it(trial.params):
                    self.study.tell(trial, state=TrialState.FAIL)
                    return "exhausted"
                if is_stray(self.study, trial):
                    self.study.tell(trial, state=TrialState.FAIL)
                    continue
                trials.run(self.study, trial, reference)
                trial = None
                self.limits.report(self._progress())
        except KeyboardInterrupt:
            self._abandon(trial)
            return "interrupted"
        except BaseException:
            self._abandon(trial)
            raise
        return "trials"

    def winner(self, stopped: str) -> Plan:
        """Return the best of the seed and the finalists by one last comparison."""
        seed = self.trials.seed
        plans = [seed, *self._finalists()]
        best, gain = seed, 0.0
        if len(plans) > 1:
            found = gains(self.trials.bench, plans, FINAL_ROUNDS)
            if max(found) >= LEAST_GAIN:
                gain = max(found)
                best = plans[found.index(gain)]
        self.limits.report(self._progress(stopped, gain))
        return best

    def _finalists(self) -> Iterator[Plan]:
        """The best trials, as far as they hold what a plan promises."""
        found = 0
        complete = trials_of(self.study, TrialState.COMPLETE)
        faster = [t for t in complete if t.value is not None and t.value < 1.0]
        for trial in sorted(faster, key=lambda t: (t.value, t.number)):
            if found == FINALISTS:
                return
            if not self.trials.fits(trial.params):
                continue
            plan = self.trials.plan(self.trials.points.spans(trial.params))
            if plan.segments == self.trials.seed.segments or not self.trials.bench.is_right(plan):
                continue
            peak = self.trials.bench.peak_bytes(plan)
            if peak <= plan.budget_bytes:
                found += 1
                yield replace(plan, measured_peak_bytes=peak)

    def _done(self) -> int:
        return len(trials_of(self.study, *FINISHED))

    def _progress(self, stopped: str = "", gain: float = 0.0) -> Progress:
        values = [t.value for t in trials_of(self.study, TrialState.COMPLETE) if t.value]
        return Progress(self._done(), self.limits.trials, min(values, default=1.0), stopped, gain)

    def _abandon(self, trial: optuna.Trial | None) -> None:
        """Give an unfinished trial up, so that others need not take it for a running one."""
        if trial is not None and not trial._get_latest_trial().state.is_finished():
            self.study.tell(trial, state=TrialState.FAIL)
