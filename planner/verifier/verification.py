"""`Verification`: what running a step plain and planned showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.verifier.verification_text import verification_table


@dataclass(frozen=True, slots=True)
class Verification:
    """A plan, measured.

    Attributes:
        budget_bytes: the plan's budget (0 for a plan written by hand: no promise).
        plain_peak_bytes: most live bytes of the plain step; None where it runs out of memory.
        measured_peak_bytes: most live bytes under the plan, over its first and second step.
        reserved_bytes: most bytes that the device's allocator held for them, what it could not use
            included; None where none keeps a count.
        compared: "steps" where results of planned steps were compared with those of a plain one;
            "replays" where each replay was compared with a checksum of what was dropped, since the
            plain step runs out of memory or differs from another plain step.
        gradients_equal: gradients (also of inputs) equal plain's bit for bit, in both steps; where
            replays were compared, all of them are equal, which makes gradients, outputs and buffers
            equal to those of the same step without the plan.
        outputs_equal: so do the tensors of the output.
        buffers_equal: so do all buffers after the step.
        plain_repeats: whether plain steps from the same state agree with each other (planned ones,
            where no plain one can run); if not, results cannot be compared bit for bit.
        forward_runs: how often each unit's forward ran in a planned step.
        replayed_ops: ops replayed in a planned step.
        overhead_ratio: (planned - plain) / plain time, measured in turn; None without plain's.
    """

    budget_bytes: int
    plain_peak_bytes: int | None
    measured_peak_bytes: int
    reserved_bytes: int | None
    compared: Literal["steps", "replays"]
    gradients_equal: bool
    outputs_equal: bool
    buffers_equal: bool
    plain_repeats: bool
    forward_runs: dict[str, int]
    replayed_ops: int
    overhead_ratio: float | None

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        equal = self.gradients_equal and self.outputs_equal and self.buffers_equal
        within = not self.budget_bytes or self.measured_peak_bytes <= self.budget_bytes
        return equal and within

    def __str__(self) -> str:
        return verification_table(self)
