"""Which generator an op draws from, and whether it did."""

from __future__ import annotations

from typing import Any

import torch

from planner.replay.record import BegunRecord, OpRecord
from planner.replay.traits import Random, generator_of


class Draw:
    """The state of a generator before an op that may draw from it.

    Attributes:
        state: that state.
    """

    def __init__(self, generator: Random) -> None:
        self._generator = generator
        self.state = generator.get_state()

    @property
    def happened(self) -> bool:
        """Whether the op drew: the generator is in another state now."""
        return not torch.equal(self.state, self._generator.get_state())


def generator_used(
    record: OpRecord | BegunRecord, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Random:
    """Return the generator from which a recorded op draws in this call."""
    where = record.generator
    if where is None:
        return generator_of(record.device)
    found: torch.Generator = args[where] if isinstance(where, int) else kwargs[where]
    return found
