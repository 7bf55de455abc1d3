"""A model of which only parts are called: planning on the fly says why it makes no plan."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import planner


class Wrapper(nn.Module):
    """Has a step that calls its net and never itself, as Lightning modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


def train(model: nn.Module, called: nn.Module, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        called(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_updates_without_a_call_are_named_once() -> None:
    model = Wrapper()
    with planner.apply(model, budget_mb=100):
        with pytest.warns(RuntimeWarning, match="this Wrapper .* forward is never called") as told:
            train(model, model.net)
        assert len(told) == 1
        assert "0 calls in 3 updates" in str(told[0].message)


def test_a_model_that_is_called_is_not_named() -> None:
    model = Wrapper()
    with planner.apply(model, budget_mb=100), warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, model)
