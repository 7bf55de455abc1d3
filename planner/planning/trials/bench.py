"""The bench: runs a step under plans, again and again, and reads peak and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Protocol

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.errors import PlannerError
from planner.planning.checks import check_same_results
from planner.planning.probe import probe
from planner.training_step.step import Step
from planner.verifier.measure import measure_peak, measure_time

MOST_RECORDED = 8
"""Plans whose records are kept: those that are compared, and the one that is tried."""


class Bench(Protocol):
    """What a measured search needs to know about plans."""

    def peak_bytes(self, plan: Plan) -> int:
        """Return the most live bytes of a step under the plan."""

    def time_ns(self, plan: Plan) -> int:
        """Return one reading of the time of a step under the plan."""

    def is_right(self, plan: Plan) -> bool:
        """Return whether replays equal their originals and the step trains the same."""


class StepBench:
    """The bench of a real step. Plans keep what they recorded from reading to reading."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._runtimes: dict[Plan, Runtime] = {}

    def peak_bytes(self, plan: Plan) -> int:
        """Return the larger peak of a first step, which records, and a second one."""
        with applied(self.step.model, self._runtime(plan)):
            return max(measure_peak(self.step) for _ in range(2))

    def time_ns(self, plan: Plan) -> int:
        """Return the time of one step."""
        with applied(self.step.model, self._runtime(plan)):
            return measure_time(self.step)

    def is_right(self, plan: Plan) -> bool:
        """Probe the plan and compare its results with plain's."""
        try:
            if probe(self.step, plan):
                return False
            check_same_results(self.step, plan)
        except PlannerError:
            return False
        return True

    def _runtime(self, plan: Plan) -> Runtime:
        runtime = self._runtimes.pop(plan, None) or Runtime(plan)
        self._runtimes[plan] = runtime  # the latest stands last
        if len(self._runtimes) > MOST_RECORDED:
            self._runtimes.pop(next(iter(self._runtimes)))
        return runtime


def times_ns(bench: Bench, plans: Sequence[Plan], rounds: int) -> Iterator[tuple[int, ...]]:
    """Yield, round by round, the least time of each plan so far; they run in turn.

    What disturbs the machine disturbs all of them, and only ever adds.
    """
    best: list[int] = []
    for _ in range(rounds):
        now = [bench.time_ns(plan) for plan in plans]
        best = [min(pair) for pair in zip(best, now, strict=True)] if best else now
        yield tuple(best)


def gains(bench: Bench, plans: Sequence[Plan], rounds: int) -> list[float]:
    """Return by how much of its time each plan is faster than the first one, for sure.

    All run in turn. The least times alone may owe a difference to one lucky reading, the medians to
    a busy hour: the smaller gain of the two counts.
    """
    readings = [[bench.time_ns(plan) for plan in plans] for _ in range(rounds)]
    first, *_ = columns = list(zip(*readings, strict=True))
    ratios = ((min(c) / min(first), median(c) / median(first)) for c in columns)
    return [1 - max(pair) for pair in ratios]
