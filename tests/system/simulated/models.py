"""Small models on the simulated device."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

SIM = torch.device("sim")


def gpt2(layers: int = 3, batch: int = 4) -> tuple[nn.Module, dict[str, Any]]:
    """GPT-2 from transformers, dropout on."""
    config = transformers.GPT2Config(
        n_layer=layers,
        n_embd=64,
        n_head=2,
        vocab_size=100,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=1,
    )
    ids = torch.randint(100, (batch, 64), device=SIM)
    return transformers.GPT2LMHeadModel(config).to(SIM), {"input_ids": ids, "labels": ids}


class Mixed(nn.Module):
    """Convolutions with their workspaces, batch norm, dropout and products."""

    def __init__(self) -> None:
        super().__init__()
        parts = [
            nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Dropout(0.1)
            )
            for _ in range(5)
        ]
        self.blocks = nn.ModuleList(parts)
        self.head = nn.Linear(8 * 256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean squared score of images [N, 8, 16, 16]."""
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.flatten(1)).square().mean()


def mixed_net(batch: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """The model and a batch."""
    return Mixed().to(SIM), torch.randn(batch, 8, 16, 16, device=SIM)


class Wide(nn.Module):
    """Blocks whose activations take whole pages of the allocator, or all but a part of one.

    Args:
        widths: of what the blocks work on.
        blocks: how many there are of each width.
    """

    def __init__(self, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        self.widths = widths * blocks
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in self.widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar for x [rows, 8]."""
        total = x.new_zeros(())
        for width, norm in zip(self.widths, self.norms, strict=True):
            spread = norm(x + total).repeat(1, width // 8)
            total = total + (spread.sigmoid() * spread).exp().mean()
        return total


def wide(rows: int, *widths: int, blocks: int = 3) -> tuple[nn.Module, torch.Tensor]:
    """The model and a batch on the simulated device."""
    return Wide(widths, blocks).to(SIM), torch.randn(rows, 8, device=SIM)


class Apart(nn.Module):
    """A table in host memory, blocks on one device and blocks on the next."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.first = nn.ModuleList(self._block() for _ in range(4)).to("sim:0")
        self.second = nn.ModuleList(self._block() for _ in range(4)).to("sim:1")

    @staticmethod
    def _block() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return a scalar for ids in host memory."""
        x = self.table(ids).to("sim:0")
        for block in self.first:
            x = x + block(x)
        x = x.to("sim:1")
        for block in self.second:
            x = x + block(x)
        return x.square().mean()


class FromHost(nn.Module):
    """Takes a batch in host memory, and keeps a table there: both are moved in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6))
        self.table = torch.randn(256, 64)  # a plain attribute stays in host memory

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar for x [256, 64]."""
        mask = x > 0
        x = x.to(SIM)
        for block in self.blocks:
            shift = self.table.sin()
            x = x + block(x * mask.to(SIM)) + shift.to(SIM)
        return x.square().mean()
