"""A net of three parts, and scenarios that are run on it plain and planned and compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from engine_runs import assert_clean, assert_same, copied, give_up
from torch import Tensor, nn


class Part(nn.Module):
    """A small residual block with dropout, a norm and an in-place op."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.norm = nn.BatchNorm1d(2 * width)
        self.drop = nn.Dropout(0.3)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.up(x)).mul_(1.5).tanh()
        return x + self.down(self.drop(y).sin())


class Net(nn.Module):
    """Three parts in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


UNITS = ("parts.0", "parts.1", "parts.2")
Scenario = Callable[[nn.Module], Any]


def batch(rows: int = 4) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)).requires_grad_()


def results(scenario: Scenario, model: nn.Module) -> list[Any]:
    """What a scenario returns, three times over, and the gradients and buffers behind it."""
    seen: list[Any] = []
    torch.manual_seed(5)
    for _ in range(3):
        model.zero_grad()
        returned = scenario(model)
        seen += copied(returned)
        seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        seen += [buffer.clone() for buffer in model.buffers()]
    return [*seen, torch.get_rng_state()]


def compare(
    scenario: Scenario, model: nn.Module | None = None, units: tuple[str, ...] = UNITS
) -> None:
    """Run a scenario plain and planned, and compare."""
    torch.manual_seed(1)
    model = model or Net()
    planned = copy.deepcopy(model)
    handle = give_up(*units)(planned)
    assert_same(results(scenario, model), results(scenario, planned))
    assert handle.replayed_ops > 0
    assert_clean()
