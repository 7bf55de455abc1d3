"""What to measure next: a change that Optuna's TPE or chance suggests, and the best way to have it.

Problem: almost all points of the space are over the budget or drop more than they need to, and
the simulator shows so at a thousandth of the price of a measurement. A measurement is worth most
where it answers: what if this block kept more, or that one less, and the rest were arranged as well
as predictions can?

Method: iterated local search (Lourenco, Martin and Stuetzle 2003) that Optuna remembers. A kick
changes a few parameters of one of the best points measured so far, alike blocks together every
other time, by chance or to what a multivariate tree-structured Parzen estimator suggests (Bergstra
et al. 2011, "Algorithms for hyper-parameter optimization"; Optuna's `TPESampler`), which has seen
which choices went with short times. The kick stays, and the other parameters descend: to within
the budget first, then to less predicted overhead. Nothing here is optimal: the measurement decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from optuna import Study
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from planner.search.measured.space import Space

STARTUP = 8
"""Measured points before the estimator has something to say."""
KICKS = 20
"""Kicks for one new point; when all lead to known ones, there is nothing new."""
LOOKS = 150
"""Points that the descent after one kick looks at."""
PARENTS = 3
"""The best points so far, whose neighbours are tried."""
MOST_CHANGES = 3
"""Parameters that one kick changes."""


class Forecast(NamedTuple):
    """What the simulator says of a point; smaller is better.

    Attributes:
        over_bytes: predicted bytes over the budget.
        overhead_ns: predicted time added to a step.
    """

    over_bytes: int
    overhead_ns: int


Foresee = Callable[[dict[str, Any]], "Forecast | None"]
"""The forecast of a point; None if it cannot run."""
IsNew = Callable[[dict[str, Any]], bool]
"""Whether measuring a point could tell something new."""


class PlanSampler(BaseSampler):
    """Samples points of a `Space`.

    Args:
        space: the space.
        foresee: the simulator.
        is_new: returns whether a point is worth measuring.
        starts: points to begin with while none is measured; at least one.
        seed: of the random choices.
    """

    def __init__(
        self,
        space: Space,
        foresee: Foresee,
        is_new: IsNew,
        starts: Sequence[dict[str, object]],
        seed: int = 0,
    ) -> None:
        self.space = space
        self.foresee = foresee
        self.is_new = is_new
        self.starts = starts
        self.distributions = distributions(space)
        self._random = random.Random(seed)
        self._tpe = TPESampler(
            n_startup_trials=STARTUP, multivariate=True, constant_liar=False, seed=seed
        )

    def reseed_rng(self) -> None:
        """Draw differently from now on."""
        self._random = random.Random()
        self._tpe.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all parameters: they are sampled together."""
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next point; one that was measured before where nothing new is found."""
        done = study._get_trials(deepcopy=False, states=(TrialState.COMPLETE,), use_cache=False)
        best = sorted(done, key=lambda t: (t.value, t.number))[:PARENTS]
        parents = [dict(t.params) for t in best] or list(self.starts)
        for number in range(KICKS if self.space.parameters else 0):
            parent = self._random.choice(parents)
            hint = {}
            if (trial.number + number) % 2:
                hint = self._tpe.sample_relative(study, trial, search_space)
            point = self._descended(parent, self._kick(parent, hint))
            forecast = self.foresee(point)
            if forecast is not None and not forecast.over_bytes and self.is_new(point):
                return point
        return parents[0]

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return the first value of a parameter that a point lacks."""
        return param_distribution.to_external_repr(0)

    def _kick(self, parent: dict[str, object], hint: dict[str, object]) -> dict[str, Any]:
        """Return a few changes to a point: of those that the hint suggests, if it does."""
        choose, names = self._random, list(self.space.parameters)
        hinted = [name for name in names if name in hint and hint[name] != parent.get(name)]
        changes: dict[str, Any] = {}
        for _ in range(choose.randint(1, MOST_CHANGES)):
            name = choose.choice(hinted or names)
            value = hint[name] if hinted else self._other(name, parent)
            together = self.space.alike[name] if choose.random() < 0.5 else (name,)
            changes.update(dict.fromkeys(together, value))
        return changes

    def _descended(self, parent: dict[str, object], kick: dict[str, object]) -> dict[str, Any]:
        """Return the kicked point after descent in all parameters but the kick's."""
        point = {**parent, **kick}
        now = self.foresee(point)
        free = [name for name in self.space.parameters if name not in kick]
        for _ in range(LOOKS if free else 0):
            name = self._random.choice(free)
            near = {**point, name: self._other(name, point)}
            then = self.foresee(near)
            if then is not None and (now is None or then < now):
                point, now = near, then
        return point

    def _other(self, name: str, point: dict[str, object]) -> Any:
        values = self.space.parameters[name]
        return self._random.choice([v for v in values if v != point.get(name)])


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's description of the parameters: levels have an order, states have none."""
    found: dict[str, BaseDistribution] = {}
    for name, values in space.parameters.items():
        if isinstance(values, range):
            found[name] = IntDistribution(0, len(values) - 1)
        else:
            choices: list[CategoricalChoiceType] = list(values)
            found[name] = CategoricalDistribution(choices)
    return found
