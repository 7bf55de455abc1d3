"""Train and eval mode, frozen parts and adapters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Batch, Chain, FeedForward, one_tensor, tokens
from .situation import Setup, situation


def _backward_in_eval_mode(loss: Tensor, out: Any, model: nn.Module) -> None:
    model.eval()
    loss.backward()
    model.train()


@situation("NVIDIA/TransformerEngine#3394", rerun="raises", may_refuse=True)
def eval_before_backward() -> Setup:
    """The loop switches to eval mode for a metric, then calls backward; what is recomputed must
    be what the forward pass did in train mode.
    """
    blocks = Chain(FeedForward(12, dropout=0.4) for _ in range(3))
    return Setup(blocks, one_tensor(6, 12), backward=_backward_in_eval_mode)


class AdaptedStack(Chain):
    """A trainable adapter in front of frozen blocks."""

    def __init__(self) -> None:
        super().__init__(FeedForward(16, dropout=0.5) for _ in range(6))
        self.blocks.requires_grad_(False)
        self.adapter = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.adapter(x))


@situation("huggingface/diffusers#9850", budget_fraction=0.7)
def gradients_in_eval_mode() -> Setup:
    """Gradients flow through a frozen model in eval mode; leaving checkpointing out because
    `training` is false leaves the memory where it was.
    """
    return Setup(AdaptedStack().eval(), one_tensor(32, 16, 16))


class FrozenTowerNet(nn.Module):
    """A frozen tower under `no_grad`, then trainable blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList(FeedForward(12) for _ in range(4))
        self.tower.requires_grad_(False)
        self.blocks = nn.ModuleList(FeedForward(12, dropout=0.1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for layer in self.tower:
                x = layer(x)
        for block in self.blocks:
            x = block(x)
        return x


@situation("2U1/Llama3.2-Vision-Finetune#27")
def frozen_tower_without_grad() -> Setup:
    """The tower saves nothing, so a segment there is only trouble; the blocks behind it count."""
    return Setup(FrozenTowerNet(), one_tensor(4, 5, 12))


class LowRankLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank detour behind dropout."""

    def __init__(self, width_in: int, width_out: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(width_in, width_out).requires_grad_(False)
        self.drop = nn.Dropout(0.2)
        self.down = nn.Linear(width_in, rank, bias=False)
        self.up = nn.Linear(rank, width_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(self.drop(x)))


class LowRankBlock(nn.Module):
    """Feed-forward block whose only trainable parts are the detours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.widen = LowRankLinear(width, 2 * width)
        self.narrow = LowRankLinear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


class LowRankLanguageModel(Chain):
    """Frozen embedding and head around low-rank blocks."""

    def __init__(self, vocabulary: int = 30, width: int = 12) -> None:
        super().__init__(LowRankBlock(width) for _ in range(4))
        self.embed = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.head = nn.Linear(width, vocabulary).requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(super().forward(self.embed(ids)))


def _half_cross_entropy(logits: Tensor) -> Tensor:
    flat = logits.flatten(0, 1)
    return F.cross_entropy(flat, torch.arange(len(flat)) % flat.shape[1]) / 2


def _twelve_ids(index: int) -> Batch:
    return (tokens(index, 30, 2, 6),), {}


@situation("huggingface/transformers#26221")
def adapters_over_a_frozen_embedding() -> Setup:
    """No input of the first block needs a gradient, yet its adapters must be trained; two
    micro-batches add up to one step.
    """
    return Setup(LowRankLanguageModel(), _twelve_ids, _half_cross_entropy, accumulate=2)
