"""Blocks that write into their own input."""

from __future__ import annotations

from torch import Tensor, nn

from .parts import Batch, noise, tokens
from .situation import Setup, situation


class OverwritingBlock(nn.Module):
    """Masks and shifts its input in place before it does anything else."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x.mul_(mask).add_(0.1)
        return self.second(self.first(x).tanh())


class OverwritingStack(nn.Module):
    """Each block overwrites what the layer before it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(OverwritingBlock(8) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.project(x)
        for block in self.blocks:
            x = block(x, mask)
        return x


def _binary_mask_batch(index: int) -> Batch:
    return (noise(index, 4, 8), tokens(index, 2, 4, 8).float()), {}


@situation("hpcaitech/ColossalAI#1460", rerun="raises", may_refuse=True)
def input_overwritten_by_the_block() -> Setup:
    """Plain training is fine, since a linear layer does not need its output in backward; but
    the input that a rerun would start from has been overwritten.
    """
    return Setup(OverwritingStack(), _binary_mask_batch)
