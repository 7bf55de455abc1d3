"""The hooks by which planning on the fly learns that the model is called.

Like the hooks of a plan they are plain objects, and a model that has them can be copied and
pickled. The copy keeps the plan that is at work and plans no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from planner.applier.compiling import next_number, traced
from planner.applier.gates import Gate

if TYPE_CHECKING:
    from planner.online.on_the_fly import OnTheFly


class CallGate(Gate):
    """Tells the planning that the model is entered or left; without one, nothing."""

    def __init__(self, planning: OnTheFly | None = None) -> None:
        self.planning, self.number = planning, next_number()

    def __deepcopy__(self, memo: dict[int, object]) -> CallGate:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class CallEnterGate(CallGate):
    """Forward pre-hook of the model."""

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, object]) -> None:
        """Note the entry."""
        if self.planning is None:
            return
        if torch.compiler.is_compiling():
            traced(self.number, "")
        else:
            self.planning.entered(module, args, kwargs)


class CallExitGate(CallGate):
    """Forward hook of the model, called on errors too."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """Note the exit."""
        if self.planning is not None and not torch.compiler.is_compiling():
            self.planning.left(output)
