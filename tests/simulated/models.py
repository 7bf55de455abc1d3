"""Small models on the simulated device."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

SIM = torch.device("sim")


def gpt2(layers: int = 4) -> tuple[nn.Module, dict[str, Any]]:
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
    ids = torch.randint(100, (4, 64), device=SIM)
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


def mixed_net() -> tuple[nn.Module, torch.Tensor]:
    """The model and a batch."""
    return Mixed().to(SIM), torch.randn(16, 8, 16, 16, device=SIM)
