"""Hand-written autograd functions that save in unusual ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .parts import Chain, one_tensor
from .situation import Setup, situation


class Gate(torch.autograd.Function):
    """`x * sigmoid(d)`, whose backward looks at its saved tensors twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, d: Tensor) -> Tensor:
        ctx.save_for_backward(x, d)
        return x * d.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        assert len(ctx.saved_tensors) == 2
        x, d = ctx.saved_tensors
        opening = d.sigmoid()
        return grad * opening, grad * x * opening * (1 - opening)


class GateBlock(nn.Module):
    """Adds a gated projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.signal = nn.Linear(width, width)
        self.control = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + Gate.apply(self.signal(x), self.control(x))


@situation("state-spaces/mamba#1021", rerun="raises", may_refuse=True)
def saved_tensors_read_twice() -> Setup:
    """Kernels from other libraries unpack twice, which costs nothing in plain training."""
    return Setup(Chain(GateBlock(8) for _ in range(3)), one_tensor(4, 8))


class FlatMatmul(torch.autograd.Function):
    """Matrix product that saves a flattened view and a transposed copy made on the way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, weight.t().contiguous())
        ctx.shape = x.shape
        return (rows @ weight).reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, transposed = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        return (flat @ transposed).reshape(ctx.shape), rows.t() @ flat


class FlatMatmulBlock(nn.Module):
    """Residual block around `FlatMatmul`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return FlatMatmul.apply(x, self.weight).tanh() + x


@situation("pytorch/pytorch#90481", may_refuse=True)
def saved_value_neither_input_nor_output() -> Setup:
    """What is saved is made inside the function, and autograd never sees it elsewhere."""
    return Setup(Chain(FlatMatmulBlock(8) for _ in range(3)), one_tensor(2, 5, 8))


COPIES = 8


class Hoarder(torch.autograd.Function):
    """Keeps a large intermediate on `ctx`, where no saved-tensor hook sees it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.wide = torch.cat([x] * COPIES, dim=-1)
        ctx.weight = weight
        return ctx.wide @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        pieces = (grad @ ctx.weight.t()).chunk(COPIES, dim=-1)
        rows = ctx.wide.flatten(0, -2).t()
        return torch.stack(pieces).sum(dim=0), rows @ grad.flatten(0, -2)


class HoardingBlock(nn.Module):
    """Residual block around `Hoarder`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(COPIES * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + Hoarder.apply(x, self.weight)


@situation(
    "bitsandbytes-foundation/bitsandbytes#2034",
    recomputes=False,
    budget_fraction=0.5,
    feasible=False,
)
def activations_kept_on_ctx() -> Setup:
    """Gradients come out right and nothing is freed: only a measured peak tells."""
    return Setup(Chain(HoardingBlock(16) for _ in range(6)), one_tensor(16, 32, 16))
