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
class Holding:
    """Memory that is live at a peak.

    Attributes:
        kind: one of `KINDS`.
        maker: the unit whose op allocated it; empty for the step's own code, and for what was
            there before.
        op: that op's name, or empty.
        saved_by: the unit whose backward it is saved for, or empty.
        count: how many tensors.
        bytes: their size, together.
    """

    kind: str
    maker: str
    op: str
    saved_by: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Line:
    """The live bytes of one way to run the step.

    Attributes:
        by_kind: for each of `KINDS`, bytes at each op: at the moment of the op, or of the replay
            right before it, at which most is live.
        totals: their sums.
        peak_op: the op at which most is live.
        peak_unit: the unit that is at work there, or empty where none is known.
        holdings: what is live there, the largest first; alike tensors are one.
    """

    by_kind: dict[str, tuple[int, ...]]
    totals: tuple[int, ...]
    peak_op: int
    peak_unit: str = ""
    holdings: tuple[Holding, ...] = ()

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
