"""Compiled and scripted code inside or around the blocks."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .parts import Chain, FeedForward, Tower, one_tensor
from .situation import Setup, Tolerance, situation

COMPILED = Tolerance(1e-4, 1e-5)  # a compiler may order the same arithmetic in another way


def _mixing(x: Tensor, weight: Tensor) -> Tensor:
    return x + (x @ weight).tanh() * x.shape[0] ** -0.5


@functools.cache
def _compiled_mixing() -> Callable[[Tensor, Tensor], Tensor]:
    """Compile on first use, so that importing the situations does not load the compiler."""
    return torch.compile(_mixing, backend="aot_eager")


class FusedBlock(nn.Module):
    """Calls a compiled function that no attribute of the module shows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return _compiled_mixing()(x, self.weight)


class HalvingPair(Chain):
    """The second block gets half as many rows, which recompiles for dynamic shapes."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.blocks
        mixed = first(x)
        return second(mixed[: len(mixed) // 2])


@situation(
    "pytorch/pytorch#166926",
    may_refuse=True,
    recomputes=False,
    needs="compile",
    tolerance=COMPILED,
)
def compiled_function_in_a_block() -> Setup:
    """A rerun may hit another entry of the compile cache than the forward pass did, and with
    it another set of saved tensors.
    """
    torch._dynamo.reset()
    blocks = HalvingPair(FusedBlock(8) for _ in range(2))
    return Setup(blocks, one_tensor(12, 8), cleanup=torch._dynamo.reset)


class CountingBlock(FeedForward):
    """Adds the rows it has seen to a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.rows: Tensor
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.rows += x.shape[0]
        return super().forward(x)


@situation(
    "pytorch/torchtitan#1806",
    rerun="differs",
    may_refuse=True,
    recomputes=False,
    needs="compile",
    tolerance=COMPILED,
)
def compiled_after_applying() -> Setup:
    """The whole model is compiled with the plan on it, and every block counts in a buffer."""
    torch._dynamo.reset()
    return Setup(
        Chain(CountingBlock(8) for _ in range(2)),
        one_tensor(4, 8),
        wrap=lambda model: torch.compile(model, backend="aot_eager"),
        cleanup=torch._dynamo.reset,
    )


def _scripted_layer(width: int) -> nn.Module:
    layer = nn.Sequential(
        nn.Linear(width, 2 * width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(2 * width, width)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(layer)


@situation("pytorch/pytorch#83349", rerun="raises", may_refuse=True, tolerance=COMPILED)
def scripted_block_in_the_middle() -> Setup:
    """The forward of a script module cannot be replaced; after a few steps its executor has
    specialized, which changes its rounding from one plain run to the next.
    """
    tower = Tower(8, 3)
    tower.blocks[1] = _scripted_layer(8)
    return Setup(tower, one_tensor(4, 8), steps=4)
