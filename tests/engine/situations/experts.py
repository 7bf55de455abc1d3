"""Mixture-of-experts routers whose decision does not come out the same twice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Chain, one_tensor
from .situation import Setup, situation

EXPERTS = 4


class LoadBalancedExperts(nn.Module):
    """Soft experts whose router leans away from the experts used most so far.

    The load is a plain Python attribute, `None` before the first call, so neither a state dict
    nor a walk over the buffers finds it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS)
        self.weights = nn.Parameter(0.3 * torch.randn(EXPERTS, width, width))
        self.load: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        if self.load is not None:
            scores = scores - 0.5 * self.load / self.load.sum()
        chosen = F.one_hot(scores.argmax(dim=-1), EXPERTS).sum(dim=0).float()
        self.load = chosen if self.load is None else self.load + chosen
        return x + torch.einsum("te,ti,eio->to", scores.softmax(dim=-1), x, self.weights)


@situation("NVIDIA-NeMo/Automodel#3247", rerun="differs", may_refuse=True)
def router_counts_its_load() -> Setup:
    """A second run of the router counts the batch again and routes by a load it has just made."""
    return Setup(
        Chain(LoadBalancedExperts(8) for _ in range(2)),
        one_tensor(10, 8),
        steps=3,
        state=lambda model: [block.load for block in model.blocks],
    )


class JitteryRouter(nn.Module):
    """Top-1 router with many ties, broken one way on even calls and the other way on odd ones.

    The parity stands for the run-to-run jitter of real kernels, made repeatable.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, EXPERTS)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        coarse = self.linear(x).softmax(dim=-1).round(decimals=1)
        sign = 1.0 if self.calls % 2 else -1.0
        self.calls += 1
        return (coarse + sign * 1e-4 * torch.arange(float(EXPERTS))).argmax(dim=-1)


class RoutedLayer(nn.Module):
    """Sends every token through the one expert its router names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = JitteryRouter(width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        choice = self.router(x)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = torch.nonzero(choice == number).flatten()
            mixed = mixed.index_add(0, mine, torch.tanh(expert(x[mine])))
        return x + mixed


@situation("NVIDIA-NeMo/Automodel#3140", rerun="raises", may_refuse=True)
def router_ties_flip() -> Setup:
    """Near-tied scores flip at recompute, so an expert receives another number of tokens. The
    routing decision must be kept or derived from kept values; the experts may be recomputed.
    """
    return Setup(
        Chain(RoutedLayer(8) for _ in range(2)),
        one_tensor(24, 8),
        state=lambda model: [layer.router.calls for layer in model.blocks],
    )
