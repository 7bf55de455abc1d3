"""Blocks whose arguments and results are more than positional tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .parts import Batch, Chain, mean_square, noise, one_tensor
from .situation import Setup, situation


class KeywordBlock(nn.Module):
    """Takes keywords only: two tensors with gradients and a float."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, *, stream: Tensor, scale: Tensor, strength: float = 1.0) -> Tensor:
        return stream + strength * torch.tanh(scale * self.linear(stream))


class KeywordStack(nn.Module):
    """Computes a scale once and hands it to every block by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.make_scale = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(KeywordBlock(8) for _ in range(3))

    def forward(self, stream: Tensor, strength: float = 0.5) -> Tensor:
        scale = self.make_scale(stream)
        for block in self.blocks:
            stream = block(stream=stream, scale=scale, strength=strength)
        return stream


def _keyword_batch(index: int) -> Batch:
    return (), {"stream": noise(index, 4, 8), "strength": 0.7}


@situation("deepspeedai/DeepSpeed#7038")
def keyword_only_arguments() -> Setup:
    """Layers from other libraries want keywords, which some checkpoint functions reject."""
    return Setup(KeywordStack(), _keyword_batch)


@dataclass
class GatedResult:
    """What a `GatedBlock` returns: a tensor, maybe a second one, and a string."""

    stream: Tensor
    gate: Tensor | None
    label: str


class GatedBlock(nn.Module):
    """Residual block scaled by a learnt gate; returns a dataclass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.make_gate = nn.Linear(width, 1)

    def forward(self, x: Tensor, report: bool = False) -> GatedResult:
        gate = self.make_gate(x).sigmoid()
        stream = x + gate * self.linear(x).tanh()
        return GatedResult(stream, gate if report else None, "gated")


class GatedStack(nn.Module):
    """Collects the gate of the middle block only."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GatedBlock(8) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        openness = torch.zeros(())
        for number, block in enumerate(self.blocks):
            result = block(x, report=number == 1)
            assert result.label == "gated"
            x = result.stream
            if result.gate is not None:
                openness = openness + result.gate.mean()
        return {"stream": x, "openness": openness}


@situation("pytorch/pytorch#124725")
def dataclass_result() -> Setup:
    """Tensors inside a returned dataclass lost their gradient."""
    return Setup(
        GatedStack(),
        one_tensor(5, 8),
        lambda out: mean_square(out["stream"]) + out["openness"],
    )


class LengthAwareBlock(nn.Module):
    """Reads a Python attribute that the caller hung on the mask tensor."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        weight = mask / mask.lengths.float().mean()
        return x + self.linear(x).tanh() * weight


class LengthAwareStack(nn.Module):
    """Decorates its mask with `lengths` before the blocks see it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LengthAwareBlock(8) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        decorated: Any = mask.clone()
        decorated.lengths = decorated.sum(dim=1)
        for block in self.blocks:
            x = block(x, decorated)
        return x


def _masked_batch(index: int) -> Batch:
    return (noise(index, 4, 6, 8), torch.ones(4, 6, 1)), {}


@situation("pytorch/pytorch#111206", may_refuse=True)
def attribute_on_an_input() -> Setup:
    """An attribute set on an input tensor is lost once that tensor is detached or cloned."""
    return Setup(LengthAwareStack(), _masked_batch)


class AttentionLayer(nn.Module):
    """Attention whose number of results depends on its flags."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        gain: Tensor | None = None,
        with_weights: bool = False,
        with_memory: bool = False,
    ) -> tuple[Any, ...]:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        scores = query @ key.mT * x.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        weights = scores.softmax(dim=-1)
        if gain is not None:
            weights = weights * gain
        results: tuple[Any, ...] = (x + self.project(weights @ value),)
        if with_weights:
            results += (weights,)
        if with_memory:
            results += ((key, value),)
        return results


class FlaggedDecoder(nn.Module):
    """Passes some arguments by position, skips one with None, passes the rest by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.9))
        self.layers = nn.ModuleList(AttentionLayer(8) for _ in range(3))

    def forward(self, x: Tensor, with_weights: bool = False) -> tuple[Tensor, list[Tensor]]:
        causal = torch.full((x.shape[1], x.shape[1]), -1e4).triu(diagonal=1)
        collected: list[Tensor] = []
        for layer in self.layers:
            x, *more = layer(x, causal, None, gain=self.gain, with_weights=with_weights)
            collected.extend(more)
        return x, collected


def _loss_with_weights(out: tuple[Tensor, list[Tensor]]) -> Tensor:
    stream, collected = out
    loss = mean_square(stream)
    for weights in collected:
        loss = loss + weights.diagonal(dim1=-2, dim2=-1).mean()
    return loss


@situation("huggingface/transformers#23366")
def arguments_by_position_and_keyword() -> Setup:
    """A checkpoint call with its own idea of the argument order drops results or arguments."""

    def batch(index: int) -> Batch:
        return (noise(index, 2, 5, 8),), {"with_weights": index % 2 == 0}

    return Setup(FlaggedDecoder(), batch, _loss_with_weights)


class ParkingBlock(nn.Module):
    """Attention that leaves its weights on itself for the parent to pick up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.parked: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT * x.shape[-1] ** -0.5
        self.parked = scores.softmax(dim=-1)
        return x + torch.tanh(self.parked @ self.value(x))


class ParkingStack(Chain):
    """Uses each block's parked weights in a penalty, then clears them."""

    def forward(self, x: Tensor) -> Any:
        penalty = torch.zeros(())
        for block in self.blocks:
            x = block(x)
            penalty = penalty + block.parked.square().mean()
            block.parked = None
        return x, penalty


@situation("pytorch/pytorch#80151", rerun="differs")
def result_parked_on_the_module() -> Setup:
    """A rerun parks its weights after the parent has cleared them, and a graph stays alive."""
    return Setup(
        ParkingStack(ParkingBlock(8) for _ in range(3)),
        one_tensor(2, 5, 8),
        lambda out: mean_square(out[0]) + out[1],
        state=lambda model: [block.parked is None for block in model.blocks],
    )
