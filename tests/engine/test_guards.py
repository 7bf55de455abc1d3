"""The step may differ from what was recorded: it is computed right, or refused with a reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from changing_net import Net, Part, batch, step
from engine_runs import assert_same, copied, give_up, weighted_sum
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


def nothing(model: Net) -> None:
    """Change nothing."""


def change(**values: Any) -> Callable[[Net], None]:
    def apply_change(model: Net) -> None:
        for name, value in values.items():
            setattr(model.b, name, value)

    return apply_change


def replace_inner(model: Net) -> None:
    torch.manual_seed(8)
    model.b.first = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6))


def replace_whole(model: Net) -> None:
    torch.manual_seed(8)
    model.b = Part()


def replace_weight(model: Net) -> None:
    torch.manual_seed(8)
    model.b.first.weight = nn.Parameter(torch.randn(6, 6))


def swap_data(model: Net) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1


def freeze(model: Net) -> None:
    model.b.first.requires_grad_(False)
    model.a.requires_grad_(False)


def thaw(model: Net) -> None:
    model.requires_grad_(True)


def tie(model: Net) -> None:
    model.b.first.weight = model.a.first.weight


def double(model: Net) -> None:
    model.double()


CHANGES = {
    "nothing": nothing,
    "branch": change(branch=True),
    "scalar": change(alpha=0.75),
    "whole_scalar": change(alpha=2),
    "negative_zero": change(alpha=-0.0),
    "zero": change(alpha=0.0),
    "nan": change(alpha=float("nan")),
    "infinite": change(alpha=float("inf")),
    "true": change(alpha=True),
    "tensor": change(alpha=torch.tensor(0.25)),
    "complex_free": change(alpha=torch.linspace(0.0, 1.0, 6)),
    "parameter": lambda model: model.b.register_parameter("scale2", None),
    "rate": lambda model: setattr(model.b.drop, "p", 0.5),
    "no_rate": lambda model: setattr(model.b.drop, "p", 0.0),
    "eval": lambda model: model.eval(),
    "more_often": lambda model: setattr(model, "times", 3),
    "not_at_all": lambda model: setattr(model, "times", 0),
    "inner": replace_inner,
    "whole": replace_whole,
    "weight": replace_weight,
    "data": swap_data,
    "freeze": freeze,
    "tie": tie,
    "buffer": lambda model: model.b.scale.mul_(0.5),
    "bigger_buffer": lambda model: setattr(model.b, "scale", torch.ones(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_is_followed(name: str) -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here = step(net, batch(4)) + step(net, batch(4))
        CHANGES[name](net)
        here += step(net, batch(4)) + step(net, batch(4)) + step(net, batch(3))
        seen.append(here)
    assert_same(*seen)


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_changes(seed: int) -> None:
    """Changes in random order; many variants of a segment come and go."""
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    generator = torch.Generator().manual_seed(seed)
    names = sorted(set(CHANGES) - {"nan", "infinite"})
    order = torch.randint(0, len(names), (14,), generator=generator).tolist()
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here: list[Any] = []
        for index in order:
            CHANGES[names[index]](net)
            thaw(net)
            net.train(names[index] != "eval")
            here += step(net, batch(2 + index % 3))
        seen.append(here)
    assert_same(*seen)


@pytest.mark.parametrize(
    "inputs",
    [
        [batch(4), batch(5), batch(4), batch(1)],
        [batch(4), batch(2, 3), batch(4), batch(2, 3, 4)],
        [batch(4), batch(4).detach(), batch(4)],
        [batch(4).detach(), batch(4), batch(4).detach()],
        [batch(4), batch(0), batch(4)],
        [batch(4, 3), batch(3, 4).detach().transpose(0, 1), batch(4, 3)],
        [batch(4), torch.ones(6).expand(4, 6), batch(4)],
        [batch(4), torch.arange(48.0).view(8, 6)[::2], batch(4)],
    ],
    ids=[
        "batch",
        "dimensions",
        "no_grad_later",
        "grad_later",
        "empty",
        "transposed",
        "expanded",
        "strided",
    ],
)
def test_other_inputs(inputs: list[Tensor]) -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        seen.append([item for x in inputs for item in step(net, x)])
        for x in inputs:
            x.grad = None
    assert_same(*seen)


def test_autocast_comes_and_goes() -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here: list[Any] = []
        for dtype in (None, torch.bfloat16, torch.float16, None, torch.bfloat16, torch.bfloat16):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                here += step(net, batch(4))
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                out = net(batch(4))
            net.zero_grad()
            weighted_sum(out).backward()  # outside of autocast
            here += copied([p.grad for p in net.parameters()])
        net.double()
        here += step(net, batch(4, dtype=torch.float64))
        seen.append(here)
    assert_same(*seen)


def test_the_same_input_twice_and_an_alias() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (self.layer(x).sin() * y.exp()).tanh()

    torch.manual_seed(2)
    model = nn.ModuleList([Pair()])
    planned = copy.deepcopy(model)
    give_up("0")(planned)
    x, y = batch(4), batch(3)[:1].detach().expand(4, 6).clone().requires_grad_()
    seen: list[list[Any]] = []
    for net in (model, planned):
        here: list[Any] = []
        for a, b in [(x, y), (x, x), (x, x.detach()), (y, x), (x, x.detach() * 1), (x, y)]:
            net.zero_grad()
            weighted_sum(net[0](a, b)).backward()
            here += copied([p.grad for p in net.parameters()])
        here += copied([x.grad, y.grad])
        x.grad = y.grad = None
        seen.append(here)
    assert_same(*seen)
