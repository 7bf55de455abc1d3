"""Small models and training loops for the tests of planning on the fly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import planner
from planner.memory.meter import meter_for, step_tensors
from planner.online.handle import OnTheFlyHandle

MIB = 2**20


class Block(nn.Module):
    """A feed-forward block with dropout and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.drop, self.down = nn.Dropout(0.1), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(self.drop(torch.tanh(self.up(self.norm(x)))))
        return found


def stack(width: int = 32, depth: int = 5, seed: int = 0) -> nn.Sequential:
    """Return a stack of blocks, the same one every time."""
    torch.manual_seed(seed)
    return nn.Sequential(*(Block(width) for _ in range(depth)), nn.Linear(width, 8))


@dataclass
class Run:
    """What a training run showed, step by step."""

    losses: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)
    handle: OnTheFlyHandle | None = None


Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return a loss that is computed by the loop."""
    return nn.functional.mse_loss(model(x), x[..., :8])


def train(
    model: nn.Module,
    batches: list[torch.Tensor],
    loss_of: Step = mean_square,
    budget: int | None = None,
    between: Callable[[int], Any] = lambda number: None,
) -> Run:
    """Train on each batch once, under a budget of so many bytes where there is one."""
    run = Run()
    if budget is not None:
        run.handle = planner.apply(model, budget_mb=budget / MIB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    for number, batch in enumerate(batches):
        with meter_for("cpu", step_tensors(model, optimizer, (batch,))) as meter:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
        run.losses.append(loss.item())
        run.peaks.append(meter.peak_bytes)
        between(number)
    return run


def batches(rows: int = 128, count: int = 5, width: int = 32) -> list[torch.Tensor]:
    """Return batches, the same ones every time."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(rows, width, generator=generator) for _ in range(count)]


def budget_of(run: Run, share: float = 0.75) -> int:
    return int(run.peaks[-1] * share)


def check(run: Run, plain: Run, budget: int, first: int = 1) -> None:
    assert run.losses == plain.losses
    assert max(run.peaks[first:]) <= budget < max(plain.peaks[first:])
    assert run.handle is not None and run.handle.plan is not None and run.handle.plan.segments


def both(budget_share: float = 0.75, **arguments: Any) -> tuple[Run, Run, int]:
    plain = train(stack(), batches(), **arguments)
    budget = budget_of(plain, budget_share)
    return train(stack(), batches(), budget=budget, **arguments), plain, budget
