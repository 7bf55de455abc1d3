"""A net with much that a user may change between two steps."""

from __future__ import annotations

from typing import Any

import torch
from engine_runs import copied, weighted_sum
from torch import Tensor, nn


class Part(nn.Module):
    """Everything about it can be changed from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop = nn.Dropout(0.25)
        self.alpha: Any = 0.5
        self.branch = False
        self.register_buffer("scale", torch.full((6,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).sin() * self.scale
        if self.branch:
            y = self.second(y).exp().clamp(max=5.0) * y
        return x + self.drop(self.second(y * self.alpha).tanh())


class Net(nn.Module):
    """Two parts, the second called as often as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Part(), Part()
        self.times = 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(self.times):
            x = self.b(x)
        return x


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, 6, generator=generator).to(dtype).requires_grad_()


def step(model: nn.Module, x: Tensor) -> list[Any]:
    """One step; returns output and gradients."""
    model.zero_grad()
    out = model(x)
    weighted_sum(out).backward()
    return copied([out, *(t.grad for t in (x, *model.parameters()) if t.grad is not None)])
