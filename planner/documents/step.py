"""The parts that plans and profiles share: the step they describe, and units left out.

Plain data, no torch. Used by `planner.documents.profile` and `planner.documents.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.documents.fields import Count, Positive, added

Mode = Literal["train", "eval", "mixed"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the step's inputs.

    Attributes:
        path: where it stands in the arguments, e.g. ``args[0]`` or ``kwargs['mask']``.
        shape: its sizes.
        dtype: its dtype without the ``torch.``, e.g. ``float32``.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The training step that a document was made for.

    Attributes:
        inputs: the tensors among the inputs.
        device: device kind, ``cpu`` or ``cuda``.
        autocast: autocast's dtype, or empty when off.
        optimizer: class name of the optimizer, or empty without one.
        root_calls: how often the step calls the model.
        shards: ranks that share parameters, gradients and optimizer state; 1 for none.
        estimated_for: device for which times and lives were derived without running the step;
            empty when it ran.
        mode: of the model's modules; mixed where some are in eval mode, as a frozen part may be.
        optimizer_state_bytes: what the optimizer keeps from step to step.
        gradient_bytes: gradients that are there when the step begins, to be added to.
    """

    inputs: tuple[TensorSpec, ...] = ()
    device: str = "cpu"
    autocast: str = ""
    optimizer: str = ""
    root_calls: int = 1
    shards: Positive = 1
    estimated_for: str = ""
    mode: Mode = added("train")
    optimizer_state_bytes: Count = added(0)
    gradient_bytes: Count = added(0)


@dataclass(frozen=True, slots=True)
class CustomOp:
    """An op outside aten that the step's forward calls.

    Attributes:
        name: the op, as ``lib::op``.
        replayable: whether replays may run it; else its results stay in memory.
        reason: why, as the predicate of a sentence about the op.
    """

    name: str
    replayable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A unit that must not be recomputed, and why.

    Attributes:
        unit: qualified name; empty for the root.
        reason: in words.
    """

    unit: str
    reason: str
