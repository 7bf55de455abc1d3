"""State around the forward pass that is gone or different once backward runs."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import torch
from torch import Tensor, nn

from .parts import Chain, one_tensor
from .situation import Setup, situation

_active: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar(
    "active", default=None
)


class ContextReader(nn.Module):
    """Finds its gate in a context variable and counts that it was there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        context: Any = _active.get()
        context["visits"] += 1
        return x + context["gate"] * self.linear(x).tanh()


class ContextOwner(Chain):
    """Sets the context variable for the duration of its forward pass."""

    def __init__(self) -> None:
        super().__init__(ContextReader(8) for _ in range(3))
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        token = _active.set({"gate": self.gate, "visits": 0})
        try:
            return super().forward(x)
        finally:
            _active.reset(token)


@situation("adapter-hub/adapters#732", rerun="raises", may_refuse=True)
def context_set_by_the_model() -> Setup:
    """The model's own context ends with its forward pass; a block that reruns finds None."""
    return Setup(ContextOwner(), one_tensor(4, 8))


_sharding = threading.local()


class ShardedBlock(nn.Module):
    """Works on as many pieces of the sequence as the caller's context says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        pieces: int = getattr(_sharding, "pieces", 1)
        worked = [(self.linear(piece) / pieces).tanh() for piece in x.chunk(pieces, dim=1)]
        return x + torch.cat(list(torch.stack(worked)), dim=1)


def _call_sharded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _sharding.pieces = 2
    try:
        return model(*args, **kwargs)
    finally:
        _sharding.pieces = 1


@situation("huggingface/trl#4314", rerun="raises", may_refuse=True)
def context_set_by_the_caller() -> Setup:
    """Only the forward pass runs inside the caller's context, which the model cannot know."""
    blocks = Chain(ShardedBlock(8) for _ in range(2))
    return Setup(blocks, one_tensor(2, 6, 8), call=_call_sharded)
