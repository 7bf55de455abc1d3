"""`Span`: one candidate segment, in op positions of a profile.

Proposed by the search, played by `planner.graph.simulate`, written to a plan by
`planner.graph.emit`.
"""

from __future__ import annotations

from dataclasses import dataclass


class IllegalSpanError(ValueError):
    """A span that the engine could not run as asked: its message says why."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the first root call whose saved tensors are given up together.

    Later root calls have the same span between the same module calls; those instances are
    derived, not listed.

    Attributes:
        start: first op under the tape; a legal position of the graph.
        stop: one past the last op under the tape; a legal position.
        keep: ids of values made inside that stay in memory.
        cuts: (position, depth) pairs; a cut stands before the op at that position, and a depth
            below 0 says that the part before it is made whole (`planner.documents.plan.Cut`).
    """

    start: int
    stop: int
    keep: frozenset[int] = frozenset()
    cuts: tuple[tuple[int, int], ...] = ()
