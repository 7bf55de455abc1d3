"""A layer, the inputs it takes, and the model around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Case:
    """A layer and what it takes."""

    name: str
    layer: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]
    drops: bool = True


class Fn(nn.Module):
    """A function as a layer, with a weight so that something trains."""

    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.rand(*shape) + 0.5)

    def forward(self, *args: Any) -> Any:
        return self.function(self.weight, *args)


class Block(nn.Module):
    """Something before the layer and something after it whose backward needs the layer's output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any) -> Any:
        output = self.layer(*(bent(a, 1.25) for a in args))
        return tree_map(lambda leaf: bent(leaf, 0.5), output)


def bent(leaf: Any, by: float) -> Any:
    """An op whose backward needs its input."""
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    return leaf * by + leaf.sin()


class Model(nn.Module):
    """The block, and a layer behind it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = Block(layer)

    def forward(self, *args: Any) -> Any:
        return tree_map(lambda leaf: bent(leaf, 2.0), self.block(*args))


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], tuple[Tensor]]:
    def make(batch: int) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(batch)
        x = torch.randn(batch, *shape, generator=generator).to(dtype)
        return (x.requires_grad_(),)

    return make


def two(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (
        *floats(*shape)(batch),
        (floats(*shape)(batch)[0].detach() * 0.7 + 0.1).requires_grad_(),
    )


def ids(length: int, most: int) -> Callable[[int], tuple[Tensor]]:
    def make(batch: int) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(batch)
        return (torch.randint(0, most, (batch, length), generator=generator),)

    return make


def labels(*shape: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def make(batch: int) -> tuple[Tensor, Tensor]:
        return floats(*shape)(batch)[0], torch.arange(batch) % classes

    return make
