"""What a plan made on the fly counts with, compared at each step with what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from planner.documents.step import TensorSpec


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides how much memory a step of one model takes.

    Attributes:
        calls: the tensors among the arguments of the model's call; of each call that may come, for
            what a plan was made for.
        trained_bytes: parameters that require gradients.
        gradient_bytes: gradients that are there when the step begins.
        optimizers: ids of the optimizers that update the model.
    """

    calls: tuple[tuple[TensorSpec, ...], ...]
    trained_bytes: int = 0
    gradient_bytes: int = 0
    optimizers: frozenset[int] = frozenset()

    def covers(self, other: Situation) -> bool:
        """Whether a step in another situation needs no more than one in this."""
        return self.covers_shapes(other) and (
            self.trained_bytes >= other.trained_bytes
            and self.gradient_bytes >= other.gradient_bytes
            and self.optimizers >= other.optimizers
        )

    def covers_shapes(self, other: Situation) -> bool:
        """Whether every call of the other is no larger than one of this."""
        return all(any(_fits(call, mine) for mine in self.calls) for call in other.calls)


def situation_of(
    call: tuple[TensorSpec, ...],
    parameters: Sequence[torch.nn.Parameter],
    optimizers: Iterable[int],
) -> Situation:
    """Return the situation in which a call of the model begins."""
    trained = [p for p in parameters if p.requires_grad]
    there = (p.grad for p in parameters)
    return Situation(
        calls=(call,),
        trained_bytes=sum(p.nbytes for p in trained),
        gradient_bytes=sum(g.nbytes for g in there if g is not None),
        optimizers=frozenset(optimizers),
    )


def _fits(call: tuple[TensorSpec, ...], planned: tuple[TensorSpec, ...]) -> bool:
    """Whether each tensor is there in the planned call with no smaller sizes."""
    by_path = {spec.path: spec for spec in planned}
    if len(call) != len(planned):
        return False
    return all(_no_larger(spec, by_path.get(spec.path)) for spec in call)


def _no_larger(spec: TensorSpec, planned: TensorSpec | None) -> bool:
    return (
        planned is not None
        and spec.dtype == planned.dtype
        and len(spec.shape) == len(planned.shape)
        and all(size <= most for size, most in zip(spec.shape, planned.shape, strict=True))
    )
