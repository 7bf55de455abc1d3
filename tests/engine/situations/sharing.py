"""Modules called several times a step and values that flow between distant blocks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Batch, FeedForward, noise, tokens
from .situation import Setup, situation


class BiasedBlock(nn.Module):
    """Attention with a position bias that the first block of a stack makes and all return.

    Two of the four results carry no gradient: a None and an integer tensor.
    """

    def __init__(self, width: int, makes_bias: bool, crosses: bool) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.project = nn.Linear(width, width)
        self.distances = nn.Embedding(16, 1) if makes_bias else None
        self.cross_query = nn.Linear(width, width) if crosses else None
        self.cross_key_value = nn.Linear(width, 2 * width) if crosses else None

    def forward(
        self, x: Tensor, bias: Tensor | None = None, encoded: Tensor | None = None
    ) -> tuple[Tensor, None, Tensor, Tensor]:
        if bias is None:
            bias = self._make_bias(x.shape[1])
        key, value = self.key_value(x).chunk(2, dim=-1)
        scores = self.query(x) @ key.mT + bias
        x = x + self.project(scores.softmax(dim=-1) @ value)
        if encoded is not None:
            x = x + self._cross(x, encoded)
        return x, None, bias, torch.tensor(x.shape[1])

    def _make_bias(self, length: int) -> Tensor:
        assert self.distances is not None
        place = torch.arange(length)
        return self.distances((place.unsqueeze(1) - place).abs()).squeeze(-1)

    def _cross(self, x: Tensor, encoded: Tensor) -> Tensor:
        assert self.cross_query is not None and self.cross_key_value is not None
        key, value = self.cross_key_value(encoded).chunk(2, dim=-1)
        return (self.cross_query(x) @ key.mT).softmax(dim=-1) @ value


class Translator(nn.Module):
    """Encoder and decoder over one embedding, which is the output projection as well."""

    def __init__(self, vocabulary: int = 20, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(BiasedBlock(width, i == 0, False) for i in range(3))
        self.decoder = nn.ModuleList(BiasedBlock(width, i == 0, True) for i in range(3))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded, bias = self.embed(source), None
        for block in self.encoder:
            encoded, _, bias, _ = block(encoded, bias)
        decoded, bias = self.embed(target), None
        for block in self.decoder:
            decoded, _, bias, length = block(decoded, bias, encoded=encoded)
        return decoded @ self.embed.weight.T / length


def _sentence_pairs(index: int) -> Batch:
    return (tokens(index, 20, 2, 7), tokens(index + 9, 20, 2, 5 + index)), {}


@situation("huggingface/transformers#11353")
def bias_made_by_the_first_block() -> Setup:
    """The bias leaves the first block and enters all later ones, beside None and an integer."""
    return Setup(Translator(), _sentence_pairs, lambda logits: logits.logsumexp(-1).mean())


class TwinEncoder(nn.Module):
    """Runs one encoder for queries and for passages and scores all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.encoder = nn.ModuleList(FeedForward(12, dropout=0.1) for _ in range(3))

    def _encode(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.encoder:
            x = block(x)
        return F.normalize(x.mean(dim=1), dim=-1)

    def forward(self, queries: Tensor, passages: Tensor) -> Tensor:
        return 5 * self._encode(queries) @ self._encode(passages).T


def _matching_loss(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores, torch.arange(len(scores)))


def _query_and_passage(index: int) -> Batch:
    return (tokens(index, 40, 4, 5), tokens(index + 20, 40, 4, 11)), {}


@situation("huggingface/transformers#23801")
def one_encoder_for_two_inputs() -> Setup:
    """Every block is called twice, with two lengths, before the one backward."""
    return Setup(TwinEncoder(), _query_and_passage, _matching_loss)


class CropClassifier(nn.Module):
    """Conv stages with batch norm and an in-place relu, run on each crop in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(self._stage(3), self._stage(6), self._stage(6))
        self.head = nn.Linear(6, 5)

    @staticmethod
    def _stage(channels: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        )

    def forward(self, crops: list[Tensor]) -> Tensor:
        logits = [self.head(self.body(crop).mean(dim=(2, 3))) for crop in crops]
        return torch.cat(logits)


def _two_crops(index: int) -> Batch:
    large, small = noise(index, 2, 3, 12, 12), 1 + 2 * noise(index + 40, 4, 3, 6, 6)
    return ([large, small],), {}


@situation("facebookresearch/fairscale#617", rerun="differs")
def two_crops_one_backward() -> Setup:
    """Running statistics must take in each crop once, in the order of the forward passes."""
    return Setup(
        CropClassifier(),
        _two_crops,
        lambda logits: logits.log_softmax(dim=-1).square().mean(),
        steps=3,
    )
