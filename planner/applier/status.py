"""`Status`: what becomes of a model's steps just now, in a word and with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["waiting", "recording", "planned", "recomputing", "removed"]
"""`waiting`: no training step was seen yet. `recording`: a step runs with every block recomputed,
and is written down to be planned from. `planned`: steps run under a plan. `recomputing`: no plan
could be made, so that every block is recomputed. `removed`: steps run as without planner."""


@dataclass(frozen=True, slots=True)
class Status:
    """What becomes of a model's steps.

    Attributes:
        state: see `State`.
        reason: why, or what is left alone, in words; empty where there is nothing to say.
    """

    state: State
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state
