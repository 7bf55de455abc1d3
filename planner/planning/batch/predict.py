"""What every batch size would take, from the profiles of as few as possible.

Two small batches are profiled; where they do the same ops, all others follow by `scale`. Then the
largest batch that fits plain is profiled too and takes the place of the larger of the two, since
times are nearer to linear there. A step that does other ops at other sizes is profiled at each
size, as long as it fits plain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.documents import Profile
from planner.errors import InfeasibleBudgetError
from planner.graph import Graph
from planner.graph.scaled import alike, scale
from planner.planning.batch.choice import BatchRow
from planner.planning.offline import from_profile
from planner.profiler.build import build_profile
from planner.training_step.step import Step

MOST_SIZES = 40
"""Sizes looked at when none are given: far beyond what any device holds."""
FIRST = (2, 4)
"""Batches profiled first: with one sample, many ops behave in a way of their own."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Two profiles that differ in nothing but the batch size."""

    sizes: tuple[int, int]
    small: Profile
    large: Profile


class Predictions:
    """Profiles, measured or scaled, and rows by batch size."""

    def __init__(
        self, step_of: Callable[[int], Step], budget_bytes: int, sizes: Sequence[int] | None
    ) -> None:
        self.step_of = step_of
        self.budget_bytes = budget_bytes
        self.given = None if sizes is None else sorted(set(sizes))
        self._measured: dict[int, Profile] = {}
        self._graphs: dict[int, Graph] = {}
        self.basis = self._first_basis()
        if self.basis is not None:
            self._move_basis(self.basis)

    @property
    def smallest(self) -> int:
        """The smallest size looked at."""
        return self.given[0] if self.given else 1

    def sizes(self) -> Iterator[int]:
        """Yield the sizes to look at, smallest first."""
        if self.given is not None:
            yield from self.given
            return
        yield 1
        for power in range(MOST_SIZES // 2):
            yield 2 << power
            yield 3 << power

    def rows(self) -> Iterator[BatchRow]:
        """Yield a row for each size; without given sizes, up to the first that does not fit."""
        for size in self.sizes():
            row = self._row(size)
            yield row
            if self.given is None and not row.fits:
                return

    def profile(self, size: int) -> Profile:
        """Return the profile of a size: measured if there is one, else scaled, else measured."""
        if size not in self._measured and self.basis is not None:
            return scale(self.basis.small, self.basis.large, self.basis.sizes, size)
        return self._run(size)

    def graph(self, size: int) -> Graph:
        """Return the graph of a size."""
        if size not in self._graphs:
            self._graphs[size] = Graph.of(self.profile(size))
        return self._graphs[size]

    def _run(self, size: int) -> Profile:
        if size not in self._measured:
            self._measured[size] = build_profile(self.step_of(size))
        return self._measured[size]

    def _first_basis(self) -> Basis | None:
        sizes = FIRST if self.given is None else tuple(self.given[:2])
        return self._basis(sizes[0], sizes[1]) if len(sizes) == 2 else None

    def _basis(self, low: int, high: int) -> Basis | None:
        small, large = self._run(low), self._run(high)
        return Basis((low, high), small, large) if alike(small, large) else None

    def _move_basis(self, basis: Basis) -> None:
        """Let the largest size that fits plain be one of the two."""
        largest = basis.sizes[1]
        for size in self.sizes():
            if self.profile(size).plain_peak_bytes > self.budget_bytes:
                break
            largest = max(largest, size)
        if largest > basis.sizes[1]:
            self.basis = self._basis(basis.sizes[0], largest) or basis

    def _row(self, size: int) -> BatchRow:
        graph = self.graph(size)
        profile = graph.profile
        scaled = size not in self._measured
        plain = profile.plain_peak_bytes
        try:
            plan = from_profile(profile, self.budget_bytes, graph=graph)
        except InfeasibleBudgetError:
            return BatchRow(batch_size=size, plain_peak_bytes=plain, extrapolated=scaled)
        seconds = profile.step_time_ns * (1 + plan.predicted_overhead_ratio) / 1e9
        return BatchRow(
            batch_size=size,
            plain_peak_bytes=plain,
            peak_bytes=plan.predicted_peak_bytes,
            overhead_ratio=plan.predicted_overhead_ratio if plan.segments else 0.0,
            samples_per_second=round(size / seconds, 3) if seconds else None,
            extrapolated=scaled,
        )
