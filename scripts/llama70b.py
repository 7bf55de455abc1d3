"""A model of 70 billion parameters in the style of Llama, as shapes only: nothing is allocated.

    planner plan scripts/llama70b.py:build --budget 80GB --device-spec h100 --shards 64 \
        --optimizer adamw

plans one rank of 64 on a laptop.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, INNER, HEADS, KV_HEADS = 80, 8192, 28672, 64, 8
WORDS, TOKENS = 128256, 8192


class Attention(nn.Module):
    """Causal attention in which several query heads share one key head."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attend: x is batch x tokens x width."""
        shape = (*x.shape[:2], -1, self.size)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).view(shape).transpose(1, 2) for project in projections)
        q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        found: torch.Tensor = self.o_proj(a.transpose(1, 2).reshape(x.shape))
        return found


def _turned(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Mlp(nn.Module):
    """The gated feed-forward part."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform each token."""
        found: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Layer(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual around it."""

    def __init__(self, width: int, inner: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width, heads, kv_heads), Mlp(width, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Run the layer."""
        x = x + self.attention(self.input_norm(x), cos, sin)
        found: torch.Tensor = x + self.mlp(self.post_norm(x))
        return found


class Llama(nn.Module):
    """Token embedding, layers, and the loss on the next token."""

    def __init__(
        self,
        layers: int = LAYERS,
        width: int = WIDTH,
        inner: int = INNER,
        heads: int = HEADS,
        kv_heads: int = KV_HEADS,
        words: int = WORDS,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, inner, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.size = width // heads

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each next token."""
        x = self.embed(ids)
        cos, sin = self._angles(ids.shape[1], x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))[:, :-1].float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def _angles(self, tokens: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = torch.arange(0, self.size, 2, device=x.device) / self.size
        angles = torch.outer(torch.arange(tokens, device=x.device), 500_000.0**-half)
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def build(layers: int = LAYERS, tokens: int = TOKENS) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the model in bfloat16 on the meta device and one sequence of tokens."""
    with torch.device("meta"):
        return Llama(layers).bfloat16(), (torch.empty(1, tokens, dtype=torch.long),)
