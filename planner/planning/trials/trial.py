"""One trial: a point becomes a plan, which runs against the seed; the study gets the ratio.

The value of a trial is a ratio: the least time of a step under its plan over the least time under
the seed, both read in turn. So readings from noisy hours and from several machines compare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import optuna
from optuna.trial import TrialState

from planner.documents import Plan
from planner.errors import PlannerError
from planner.graph import Graph, IllegalSpanError, Simulation, Span, emit, simulate
from planner.planning.trials.bench import Bench, times_ns
from planner.search.measured.novelty import Known
from planner.search.measured.options import SOLVER
from planner.search.measured.points import Points, dropped_and_held
from planner.search.measured.sampler import Forecast
from planner.search.measured.space import Point
from planner.search.measured.study import trials_of

ROUNDS = 6
"""Readings of each trial; a slow plan is stopped after fewer."""
PEAK = "bytes over the budget"
"""The constraint, by name."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What every trial of one process shares.

    Attributes:
        graph: the step.
        points: the points of the study's space.
        seed: this process's own plan: budget, exclusions and pins come from it.
        limit_bytes: most live bytes by simulation.
        bench: what runs plans.
    """

    graph: Graph
    points: Points
    seed: Plan
    limit_bytes: int
    bench: Bench

    def plan(self, spans: tuple[Span, ...]) -> Plan:
        """Return spans as a plan, predicted."""
        played = simulate(self.graph, spans)
        return replace(
            self.seed,
            segments=emit(self.graph, spans),
            predicted_peak_bytes=played.peak_bytes,
            predicted_overhead_ratio=self._overhead(played),
            measured_peak_bytes=None,
            solver=SOLVER,
            status="feasible",
            gap=self._gap(played),
        )

    def foresee(self, point: Point) -> Forecast | None:
        """Return what the simulator says of a point; None where it cannot run."""
        try:
            played = simulate(self.graph, self.points.spans(point))
        except IllegalSpanError:
            return None
        over = max(0, played.peak_bytes - self.limit_bytes)
        return Forecast(over, played.overhead_ns)

    def fits(self, point: Point) -> bool:
        """Return whether a point runs within the budget, by simulation."""
        forecast = self.foresee(point)
        return forecast is not None and not forecast.over_bytes

    def run(self, study: optuna.Study, trial: optuna.Trial, reference: Plan) -> None:
        """Measure a trial's plan against the reference and tell the study."""
        spans = self.points.spans(trial.params)
        if not self.fits(trial.params):  # another process's machine may think otherwise
            self._reject(study, trial, 1.0)
            return
        plan = self.plan(spans)
        if plan.segments == reference.segments:  # against itself: a reading would be noise
            trial.set_constraint(PEAK, 0.0)
            study.tell(trial, 1.0)
            return
        try:
            over = self.bench.peak_bytes(plan) - plan.budget_bytes
            if over > 0:
                self._reject(study, trial, float(over))
                return
            trial.set_constraint(PEAK, over)
            ratio = self._ratio(trial, plan, reference)
        except PlannerError:  # a replay that fails: the plan is no good, the search goes on
            self._reject(study, trial, 1.0)
            return
        if ratio is None:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, ratio)

    def known(self, point: Point, fits: bool = True) -> Known:
        """Return what distinguishes a point from others."""
        dropped, held = dropped_and_held(self.graph, self.points.spans(point))
        forecast = self.foresee(point)
        overhead = 0 if forecast is None else forecast.overhead_ns
        return Known(frozenset(dropped), frozenset(held), overhead, fits)

    def measured(self, study: optuna.Study) -> list[Known]:
        """Return what the study's trials are about, those that still run included."""
        own = self.points.space.parameters.keys()
        return [
            self.known(t.params, all(over <= 0 for over in t.constraints.values()))
            for t in trials_of(study)
            if own <= t.params.keys()
        ]

    def _ratio(self, trial: optuna.Trial, plan: Plan, reference: Plan) -> float | None:
        """The trial's value; None where its partial times say that it is not worth finishing."""
        ratio = 1.0
        for number, (mine, other) in enumerate(times_ns(self.bench, (plan, reference), ROUNDS)):
            ratio = mine / max(other, 1)
            trial.report(ratio, number)
            if number + 1 < ROUNDS and trial.should_prune():
                return None
        return ratio

    def _reject(self, study: optuna.Study, trial: optuna.Trial, over: float) -> None:
        trial.set_constraint(PEAK, over)
        study.tell(trial, state=TrialState.PRUNED)

    def _overhead(self, played: Simulation) -> float:
        return round(played.overhead_ns / max(self.graph.profile.step_time_ns, 1), 6)

    def _gap(self, played: Simulation) -> float | None:
        """How far the prediction is from the bound that the seed's own gap stands for."""
        if self.seed.gap is None:
            return None
        step_ns = self.graph.profile.step_time_ns
        least = self.seed.predicted_overhead_ratio * step_ns * (1 - self.seed.gap)
        return round(max(0.0, 1 - least / max(played.overhead_ns, 1)), 4)
