"""Where the memory is: uneven stages, skips, growing inputs, one segment for everything."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Batch, Chain, FeedForward, Tower, noise, one_tensor, tokens
from .situation import Setup, situation

LENGTHS = (48, 64, 160, 56)


class TransformerBlock(nn.Module):
    """Single-head attention and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        weights = (query @ key.mT / 5).softmax(dim=-1)
        return self.mlp(x + self.project(weights @ value))


def _growing_sequence(index: int) -> Batch:
    return (noise(index, 2, LENGTHS[index % len(LENGTHS)], 24),), {}


@situation("gke-labs/open-rl#99", budget_fraction=0.6)
def sequences_longer_than_planned() -> Setup:
    """A plan made on the first, short batch must still be right for a much longer one."""
    return Setup(Chain(TransformerBlock(24) for _ in range(6)), _growing_sequence, steps=4)


@situation("pytorch/pytorch#147449", budget_fraction=0.65)
def one_segment_is_not_enough() -> Setup:
    """Giving up the whole network as one segment brings it all back at once in backward."""
    return Setup(Tower(32, 8), one_tensor(16, 32, 32))


class UnevenStages(nn.Module):
    """Nine stages in a `Sequential`, two of them much wider than the others."""

    def __init__(self) -> None:
        super().__init__()
        expansions = (2, 2, 2, 16, 2, 2, 2, 2, 8)
        self.stages = nn.Sequential(*(FeedForward(16, expansion=e) for e in expansions))

    def forward(self, x: Tensor) -> Tensor:
        return self.stages(x)


@situation("pytorch/pytorch#68423", budget_fraction=0.6)
def stages_of_unequal_cost() -> Setup:
    """Splitting by count leaves a stage or a rest that sets the peak; bytes must decide."""
    return Setup(UnevenStages(), one_tensor(16, 16, 16))


class ConvPair(nn.Module):
    """Two convolutions with group norm and channel dropout."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.norm = nn.GroupNorm(2, channels_out)
        self.drop = nn.Dropout2d(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(F.leaky_relu(self.first(x)))
        return self.drop(F.leaky_relu(self.norm(x)))


class UNet(nn.Module):
    """Three levels down and two up again, joined by skips."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([ConvPair(1, 4), ConvPair(4, 8), ConvPair(8, 16)])
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(16, 8, 2, stride=2), nn.ConvTranspose2d(8, 4, 2, stride=2)]
        )
        self.join = nn.ModuleList([ConvPair(16, 8), ConvPair(8, 4)])
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, skips = image, []
        for level, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for grow, join in zip(self.grow, self.join, strict=True):
            x = join(torch.cat([grow(x), skips.pop()], dim=1))
        return self.out(x)


@situation("Project-MONAI/MONAI#8554", budget_fraction=0.8)
def skips_across_the_network() -> Setup:
    """The skips hold the encoder's results whatever the plan says."""
    return Setup(UNet(), one_tensor(2, 1, 16, 16))


class NextTokenLoss(nn.Module):
    """Cross entropy against targets that the parent leaves on it."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: Any = None

    def forward(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), self.targets)


class IdsToLoss(nn.Module):
    """One `Sequential` from token ids to the loss."""

    def __init__(self, vocabulary: int = 20, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(vocabulary, width),
            FeedForward(width, dropout=0.1),
            FeedForward(width, dropout=0.1),
            nn.LayerNorm(width),
            nn.Linear(width, vocabulary),
            NextTokenLoss(),
        )

    def forward(self, ids: Tensor) -> Tensor:
        self.layers[-1].targets = ids[:, 1:].flatten()
        return self.layers(ids)


def _id_batch(index: int) -> Batch:
    return (tokens(index, 20, 3, 7),), {}


@situation("deepspeedai/DeepSpeed#4274")
def from_token_ids_to_the_loss() -> Setup:
    """The first block has no float input at all and the last one returns the loss."""
    return Setup(IdsToLoss(), _id_batch, lambda loss: loss)
