"""The model of `planner demo`: a small decoder-like transformer, with torch alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, BLOCKS = 256, 128, 4, 6
BATCH, LENGTH = 8, 128


class Block(nn.Module):
    """Attention and a two-layer MLP, each with a norm and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same shape."""
        x = x + self.out(self._attention(self.norm1(x)))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y

    def _attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.mix(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class DemoTransformer(nn.Module):
    """Token ids (batch, length) to the mean next-token loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scalar loss of predicting each token from those before it."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def demo() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model and its inputs, the same each time."""
    torch.manual_seed(0)
    return DemoTransformer(), (torch.randint(0, VOCABULARY, (BATCH, LENGTH)),)
