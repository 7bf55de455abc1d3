"""A net that raises on demand, in forward or in backward."""

from __future__ import annotations

import copy
from typing import Any

import torch
from engine_runs import copied, give_up, weighted_sum
from torch import Tensor, nn


def again(error: BaseException) -> BaseException:
    """The same error without a traceback that would keep frames."""
    return type(error)(*error.args)


class Trap(nn.Module):
    """Raises on demand, in forward or in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.forward_error: BaseException | None = None
        self.backward_error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.forward_error is not None:
            raise again(self.forward_error)
        if self.backward_error is not None:
            return Raise.apply(x, self)
        return x


class Raise(torch.autograd.Function):
    """Raises in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, trap: Trap) -> Tensor:
        ctx.trap = trap
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise again(ctx.trap.backward_error)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop, self.trap = nn.Dropout(0.2), Trap()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.drop(self.trap(self.first(x).tanh()).sin()))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


UNITS = ("parts.0", "parts.1", "parts.2")


def batch(rows: int = 4) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)).requires_grad_()


def step(model: nn.Module, rows: int = 4) -> list[Any]:
    model.zero_grad()
    x = batch(rows)
    out = model(x)
    weighted_sum(out).backward()
    return copied([out, x.grad, *(p.grad for p in model.parameters())])


def pair() -> tuple[Net, Net]:
    """A plain model and its planned copy."""
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up(*UNITS)(planned)
    return model, planned
