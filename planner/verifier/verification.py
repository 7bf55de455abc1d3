"""`Verification`: what running a step plain and planned showed."""

from __future__ import annotations

from dataclasses import dataclass

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
        gradients_equal: gradients (also of inputs) equal plain's bit for bit, in both steps. Where
            the plain step runs out of memory: every replay equals what it stands for, bit for bit
            (by checksum), which makes them so.
        outputs_equal: so do the tensors of the output.
        buffers_equal: so do all buffers after the step.
        plain_repeats: whether two plain steps agree with each other; if not, kernels are not
            deterministic and bits cannot be compared.
        forward_runs: how often each unit's forward ran in a planned step.
        replayed_ops: ops replayed in a planned step.
        overhead_ratio: (planned - plain) / plain time, measured in turn; None without plain's.
    """

    budget_bytes: int
    plain_peak_bytes: int | None
    measured_peak_bytes: int
    reserved_bytes: int | None
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
