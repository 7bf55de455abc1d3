"""Randomness inside a block: torch's generator, Python's and NumPy's."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from .parts import Chain, FeedForward, Tower, one_tensor
from .situation import Setup, situation


@situation("allenai/OLMo-core#828")
def dropout_in_every_block() -> Setup:
    """A second dropout mask at recompute trains another network than the forward pass did."""
    return Setup(Tower(16, 4, dropout=0.3), one_tensor(8, 6, 16), steps=3)


class SkippableBlock(FeedForward):
    """Stochastic depth: a Python coin decides whether the layer runs."""

    def forward(self, x: Tensor) -> Tensor:
        skip = self.training and random.random() < 0.5
        return x * 0.9 if skip else super().forward(x)


@situation("wenet-e2e/wenet#2482", rerun="raises", may_refuse=True)
def layer_drop_by_python_random() -> Setup:
    """Python's generator has moved on by the time backward comes, so another branch is taken."""
    return Setup(Chain(SkippableBlock(16) for _ in range(6)), one_tensor(8, 16), steps=3)


class TimeMaskedBlock(FeedForward):
    """Silences three time steps, drawn with NumPy, before the feed-forward layer."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            first = int(np.random.randint(0, x.shape[1] - 3))
            audible = torch.ones(x.shape[1])
            audible[first : first + 3] = 0.0
            x = x * audible.view(1, -1, 1)
        return super().forward(x)


class SpeechEncoder(Chain):
    """A projection of acoustic features in front of time-masked blocks."""

    def __init__(self) -> None:
        super().__init__(TimeMaskedBlock(16) for _ in range(3))
        self.project = nn.Linear(5, 16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.project(x))


@situation("huggingface/transformers#10459", rerun="differs", may_refuse=True)
def time_mask_by_numpy() -> Setup:
    """A NumPy draw is outside the generators torch restores: shapes fit, gradients are wrong."""
    return Setup(SpeechEncoder(), one_tensor(4, 12, 5))
