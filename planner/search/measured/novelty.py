"""Which plans are worth a measurement, given those that were measured.

IT CAN ONLY BE SLOWER. A plan that gives up everything that another one gives up, and holds nothing
more to shorten its replays, runs again whatever that one runs again. If the other fits the budget
and is not predicted to be slower, measuring the first would tell nothing, however wrong the
predicted times are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A plan, as far as it matters here.

    Attributes:
        given_up: saved values that it gives up.
        held: unsaved values that it keeps.
        overhead_ns: predicted overhead.
        fits: whether it was found to fit the budget, or nothing is known yet.
    """

    given_up: frozenset[int]
    held: frozenset[int]
    overhead_ns: int
    fits: bool = True

    def makes_needless(self, other: Known) -> bool:
        """Return whether nothing is to be learned from the other one: IT CAN ONLY BE SLOWER."""
        if not self.fits:
            return (self.given_up, self.held) == (other.given_up, other.held)
        return (
            self.given_up <= other.given_up
            and self.held >= other.held
            and self.overhead_ns <= other.overhead_ns
        )


def is_new(plan: Known, known: Iterable[Known]) -> bool:
    """Return whether measuring a plan could tell something new."""
    return not any(one.makes_needless(plan) for one in known)
