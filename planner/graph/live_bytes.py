"""`Timeline`: predicted live bytes of a step, op by op and by category. Pure data.

Made by `planner.graph.timeline`, drawn by `planner.report`.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (
    "parameters",
    "buffers",
    "optimizer state",
    "inputs",
    "gradients",
    "kept activations",
    "replayed values",
    "temporaries",
)
"""What memory is for, in the order in which it is stacked: what stays longest first."""


@dataclass(frozen=True, slots=True)
class Line:
    """The live bytes of one way to run the step.

    Attributes:
        by_kind: for each of `KINDS`, bytes at each op: at the moment of the op, or of the replay
            right before it, at which most is live.
        totals: their sums.
        peak_op: the op at which most is live.
        peak_unit: the unit that is at work there, or empty where none is known.
    """

    by_kind: dict[str, tuple[int, ...]]
    totals: tuple[int, ...]
    peak_op: int
    peak_unit: str = ""

    @property
    def peak_bytes(self) -> int:
        """Most live bytes."""
        return self.totals[self.peak_op] if self.totals else 0

    def at_peak(self) -> dict[str, int]:
        """Return the bytes of each kind that is there at the peak."""
        held = {kind: row[self.peak_op] for kind, row in self.by_kind.items() if self.totals}
        return {kind: size for kind, size in held.items() if size}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The plain step and the planned one, over the same ops.

    Attributes:
        plain, planned: the two.
        budget_bytes: the budget.
        forward_stop: the first op after forward.
        phases: (name, first op, one past the last op) of the step's parts.
    """

    plain: Line
    planned: Line
    budget_bytes: int
    forward_stop: int
    phases: tuple[tuple[str, int, int], ...] = ()
