"""Gradients of gradients of gradients, where torch itself serves them and where it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_runs import assert_clean, assert_same, copied, give_up, weighted_sum
from torch import Tensor, nn


class Part(nn.Module):
    """A residual block with dropout, a norm and an in-place op."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), norm, nn.Linear(16, 8)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.up(x)).mul_(1.5).tanh()
        return x + self.down(self.drop(y).sin())


def third_order(model: nn.Module) -> list[Any] | str:
    """Differentiate three times; returns what came out, or torch's refusal."""
    torch.manual_seed(2)
    x = torch.randn(4, 8, requires_grad=True)
    value = weighted_sum(model(x))
    try:
        for _ in range(2):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            value = gradient.square().sum()
        value.backward()
    except RuntimeError as error:
        return str(error)
    return copied([value, x.grad, *(p.grad for p in model.parameters())])


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_third_order(norm: type[nn.Module]) -> None:
    """Torch 2.14 refuses the third derivative of batch norm; then it is refused with a plan too."""
    torch.manual_seed(1)
    model = nn.Sequential(*(Part(norm(16)) for _ in range(3)))
    planned = copy.deepcopy(model)
    handle = give_up("0", "1", "2")(planned)
    for _ in range(2):
        plain, got = third_order(model), third_order(planned)
        if isinstance(plain, str):
            assert norm is nn.BatchNorm1d and plain == got
        else:
            assert not isinstance(got, str), got
            assert_same(plain, got)
        assert_clean()
        for net in (model, planned):
            net.zero_grad()
    assert handle.replayed_ops > 0
