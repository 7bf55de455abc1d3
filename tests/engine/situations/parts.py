"""Blocks, batch makers and losses that several situations share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[tuple[Any, ...], dict[str, Any]]
Batches = Callable[[int], Batch]


def noise(seed: int, *shape: int) -> Tensor:
    """Normal values that depend on `seed` alone, not on the global generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7000 + seed))


def tokens(seed: int, vocabulary: int, *shape: int) -> Tensor:
    """Integers below `vocabulary` that depend on `seed` alone."""
    generator = torch.Generator().manual_seed(7000 + seed)
    return torch.randint(0, vocabulary, shape, generator=generator)


def one_tensor(*shape: int) -> Batches:
    """Batches that are a single positional float tensor."""
    return lambda index: ((noise(index, *shape),), {})


def mean_square(out: Any) -> Tensor:
    """Mean of squares over a tensor, or summed over a nest of tensors (None is skipped)."""
    if isinstance(out, Tensor):
        return out.float().square().mean()
    members = out.values() if isinstance(out, dict) else out
    terms = [mean_square(member) for member in members if member is not None]
    return torch.stack(terms).sum()


def paired_loss(out: tuple[Any, Any]) -> Tensor:
    """Loss for models that return `(output, auxiliary loss)`."""
    return mean_square(out[0]) + out[1]


class FeedForward(nn.Module):
    """Pre-norm residual block: norm, widen, gelu, narrow, dropout, add."""

    def __init__(self, width: int, dropout: float = 0.0, expansion: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, expansion * width)
        self.narrow = nn.Linear(expansion * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.widen(self.norm(x)))
        return x + self.drop(self.narrow(hidden))


class Chain(nn.Module):
    """Blocks in a `ModuleList`, called one after the other by a Python loop."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Tower(Chain):
    """A chain of feed-forward blocks with a linear head."""

    def __init__(self, width: int, depth: int, dropout: float = 0.0) -> None:
        super().__init__(FeedForward(width, dropout) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))
