"""`Kept` and `GivenUp`: what becomes of values inside a segment, and why.

Pure data, made by `planner.graph.reasons`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.units import MIB, format_bytes, format_ns


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that a segment keeps, and what dropping it as well would change.

    Attributes:
        address: its op address.
        size_bytes: the size of its storage.
        saved: whether backward needs it; else it only shortens the replay.
        frees_bytes: what dropping it would free.
        costs_ns: what dropping it would add to the replay.
        possible: whether it can be recomputed.
    """

    address: str
    size_bytes: int
    saved: bool
    frees_bytes: int
    costs_ns: int
    possible: bool = True

    @property
    def ns_per_mib(self) -> float | None:
        """Time per MiB of dropping it, or None where that frees nothing."""
        return self.costs_ns / (self.frees_bytes / MIB) if self.frees_bytes > 0 else None

    @property
    def why(self) -> str:
        """The reason in words."""
        if not self.possible:
            return "cannot be recomputed from what is in memory during backward"
        if not self.saved and self.costs_ns <= 0:
            return (
                "also used outside the segment: keeping it costs no memory and shortens the replay"
            )
        if not self.saved:
            return f"input of the replay, which without it takes {format_ns(self.costs_ns)} more"
        if self.frees_bytes <= 0:
            return "stays in memory anyway: something outside the segment references it"
        price = self.ns_per_mib
        assert price is not None
        return (
            f"recomputing it takes {format_ns(max(0, self.costs_ns))} for "
            f"{format_bytes(self.frees_bytes)}: {format_ns(max(0.0, price))} per MiB"
        )


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The outputs of an op that backward needs and that the segment recomputes.

    Attributes:
        address: the op's address.
        size_bytes: the size of all of it.
        takes_bytes: memory that keeping it would take.
        saves_ns: what keeping it would save of the replay.
    """

    address: str
    size_bytes: int
    takes_bytes: int
    saves_ns: int

    @property
    def ns_per_mib(self) -> float | None:
        """Time per MiB of recomputing it, or None where keeping it takes no memory."""
        return self.saves_ns / (self.takes_bytes / MIB) if self.takes_bytes > 0 else None
