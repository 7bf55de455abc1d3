"""`Kept` and `GivenUp`: what becomes of values inside a segment, and why.

Pure data, made by `planner.graph.reasons`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.units import MIB, format_bytes, format_ns


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that a segment keeps, and what giving it up as well would change.

    Attributes:
        address: its op address.
        size_bytes: the size of its storage.
        saved: whether backward needs it; else it only shortens the replay.
        frees_bytes: what giving it up would free.
        costs_ns: what giving it up would add to the replay.
        possible: whether the engine could make it again.
    """

    address: str
    size_bytes: int
    saved: bool
    frees_bytes: int
    costs_ns: int
    possible: bool = True

    @property
    def ns_per_mib(self) -> float | None:
        """The price of giving it up, or None where that frees nothing."""
        return self.costs_ns / (self.frees_bytes / MIB) if self.frees_bytes > 0 else None

    @property
    def why(self) -> str:
        """The reason in words."""
        if not self.possible:
            return "cannot be made again from what is there in backward"
        if not self.saved and self.costs_ns <= 0:
            return "needed outside the segment, which need not make it again"
        if not self.saved:
            return f"not needed itself; without it the replay takes {format_ns(self.costs_ns)} more"
        if self.frees_bytes <= 0:
            return "something outside the segment holds it anyway"
        price = self.ns_per_mib
        assert price is not None
        return (
            f"making it again takes {format_ns(max(0, self.costs_ns))} for "
            f"{format_bytes(self.frees_bytes)}: {format_ns(max(0.0, price))} per MiB"
        )


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What an op makes that backward needs and that the segment makes again.

    Attributes:
        address: the op's address.
        size_bytes: the size of all of it.
        takes_bytes: what keeping it would take.
        saves_ns: what keeping it would save of the replay.
    """

    address: str
    size_bytes: int
    takes_bytes: int
    saves_ns: int

    @property
    def ns_per_mib(self) -> float | None:
        """The price paid for it now, or None where keeping it takes nothing."""
        return self.saves_ns / (self.takes_bytes / MIB) if self.takes_bytes > 0 else None
