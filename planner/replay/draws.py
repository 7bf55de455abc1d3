"""Which generator an op draws from."""

from __future__ import annotations

from typing import Any

import torch

from planner.replay.record import BegunRecord, OpRecord
from planner.replay.traits import Random, generator_of


def generator_used(
    record: OpRecord | BegunRecord, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Random:
    """Return the generator from which a recorded op draws in this call."""
    where = record.generator
    if where is None:
        return generator_of(record.device)
    found: torch.Generator = args[where] if isinstance(where, int) else kwargs[where]
    return found
