"""Buffers that the forward pass itself moves: running statistics, codebooks, scale histories."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Batch, mean_square, noise, one_tensor, paired_loss
from .situation import Setup, situation


class ConvNorm(nn.Module):
    """Convolution, cumulative-average batch norm, relu."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels_out, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class SmallConvNet(nn.Module):
    """Three conv blocks in a `Sequential` and a classifier over their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(ConvNorm(3, 8), ConvNorm(8, 8), ConvNorm(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(dim=(2, 3)))


@situation("pfnet/pytorch-pfn-extras#117", rerun="differs")
def cumulative_batch_norm() -> Setup:
    """With `momentum=None` the weight of a batch is one over the batches counted so far, so the
    usual repair (a rescaled momentum) cannot undo a second update.
    """
    return Setup(SmallConvNet(), one_tensor(4, 3, 8, 8), steps=3)


class Quantizer(nn.Module):
    """Nearest-code quantizer whose codes drift towards what was assigned to them."""

    def __init__(self, width: int = 6, entries: int = 8) -> None:
        super().__init__()
        self.codes: Tensor
        self.register_buffer("codes", torch.randn(entries, width))
        self.before = nn.Linear(width, width)
        self.behind = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.before(x)
        choice = torch.cdist(latent, self.codes).argmin(dim=-1)
        quantized = self.codes[choice]
        if self.training:
            self._drift(latent, choice)
        straight_through = latent + (quantized - latent).detach()
        return self.behind(straight_through), (latent - quantized).square().mean()

    @torch.no_grad()
    def _drift(self, latent: Tensor, choice: Tensor) -> None:
        for entry in choice.unique():
            assigned = latent[choice == entry].mean(dim=0)
            self.codes[entry] = 0.5 * (self.codes[entry] + assigned)


class TwoQuantizers(nn.Module):
    """Quantizers in a row; their commitment losses add up."""

    def __init__(self) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList([Quantizer(), Quantizer()])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        commitment = torch.zeros(())
        for quantizer in self.quantizers:
            x, part = quantizer(x)
            commitment = commitment + part
        return x, commitment


@situation("lucidrains/vector-quantize-pytorch#221", rerun="differs", may_refuse=True)
def codebook_moved_by_forward() -> Setup:
    """A second forward pass picks codes from the moved codebook, then moves it once more."""
    return Setup(TwoQuantizers(), one_tensor(20, 6), paired_loss, steps=3)


class HistoryScaledLinear(nn.Module):
    """Fake-quantized linear layer scaled by the largest input of the last four steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.history: Tensor
        self.register_buffer("history", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        unit = self.history.max() / 7
        rounded = (x / unit).round().clamp(-8, 7) * unit
        with torch.no_grad():
            newest = x.abs().max().view(1)
            self.history.copy_(torch.cat([newest, self.history[:-1]]))
        return F.gelu(self.linear(x + (rounded - x).detach()))


class ScaledStack(nn.Module):
    """Four history-scaled layers in a `Sequential`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(HistoryScaledLinear(12) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def _growing_amplitude(index: int) -> Batch:
    return (noise(index, 8, 12) * (1 + 3 * index),), {}


@situation("NVIDIA/TransformerEngine#24", rerun="differs", may_refuse=True)
def delayed_scaling_history() -> Setup:
    """Forward and recompute must see the same scale, and the history moves once a step."""
    return Setup(ScaledStack(), _growing_amplitude, mean_square, steps=4)
