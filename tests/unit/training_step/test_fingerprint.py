"""What changes a model's fingerprint, and what must not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.training_step.fingerprint import fingerprint, unit_fingerprints


class Net(nn.Module):
    def __init__(self, width: int = 4, p: float = 0.1, kind: type[nn.Module] = nn.ReLU):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.rest = nn.Sequential(kind(), nn.Dropout(p), nn.BatchNorm1d(width))
        self.register_buffer("cache", None, persistent=False)

    def forward(self, x):
        return self.rest(self.first(x))


def test_is_sixteen_hexadecimal_digits():
    assert len(fingerprint(Net())) == 16
    assert int(fingerprint(Net()), 16) >= 0


def train(net: Net) -> None:
    torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(2, 3)).sum().backward()
    net.cache = torch.ones(5)


SAME: dict[str, Callable[[Net], object]] = {
    "weights": lambda net: net.first.weight.data.fill_(3),
    "device": lambda net: net.to("meta"),
    "train flag": lambda net: net.eval(),
    "a step": train,
    "hooks": lambda net: net.first.register_forward_hook(print),
    "gradient hooks": lambda net: net.first.weight.register_hook(print),
    "a wrapped forward": lambda net: setattr(net.first, "forward", net.first.forward),
    "attributes": lambda net: setattr(net, "count", 3),
}


@pytest.mark.parametrize("case", SAME)
def test_what_does_not_matter(case: str):
    net = Net()
    SAME[case](net)
    assert fingerprint(net) == fingerprint(Net())


def tie(net: Net) -> None:
    net.other = nn.Linear(3, 4)
    net.other.weight = net.first.weight


def untie(net: Net) -> None:
    net.other = nn.Linear(3, 4)


CHANGED: dict[str, tuple[Callable[[], Net], set[str]]] = {
    "shape": (lambda: Net(width=5), {"first", "rest.2"}),
    "class": (lambda: Net(kind=nn.GELU), {"rest.0"}),
    "hyperparameter": (lambda: Net(p=0.2), {"rest.1"}),
    "dtype": (lambda: with_(lambda net: net.first.double()), {"first"}),
    "frozen": (lambda: with_(lambda net: net.first.requires_grad_(False)), {"first"}),
    "buffer": (lambda: with_(lambda net: net.rest[2].register_buffer("b", None)), {"rest.2"}),
    "child": (lambda: with_(lambda net: net.rest.append(nn.ReLU())), {"rest", "rest.3"}),
    "order": (lambda: with_(swap), {""}),
    "bias": (lambda: with_(lambda net: setattr(net.first, "bias", None)), {"first"}),
}


def with_(change: Callable[[Net], object]) -> Net:
    net = Net()
    change(net)
    return net


def swap(net: Net) -> None:
    first = net.first
    del net.first
    net.first = first


@pytest.mark.parametrize("case", CHANGED)
def test_what_matters_and_which_unit_it_changes(case: str):
    build, units = CHANGED[case]
    changed = build()
    assert fingerprint(changed) != fingerprint(Net())
    old, new = unit_fingerprints(Net()), unit_fingerprints(changed)
    assert {name for name in old | new if old.get(name) != new.get(name)} == units


def test_shared_weights_matter():
    assert fingerprint(with_(tie)) != fingerprint(with_(untie))


def test_shared_modules_matter():
    shared, layer = nn.Linear(2, 2), nn.Linear
    one, two = nn.Sequential(shared, shared), nn.Sequential(layer(2, 2), layer(2, 2))
    assert fingerprint(one) != fingerprint(two)


def test_units_are_the_named_modules():
    assert list(unit_fingerprints(Net())) == [name for name, _ in Net().named_modules()]


def test_addresses_in_a_representation_do_not_matter():
    class Applies(nn.Module):
        def extra_repr(self) -> str:
            return f"function={object()!r}"

    assert fingerprint(Applies()) == fingerprint(Applies())


def test_a_representation_that_raises_is_left_out():
    class Broken(nn.Module):
        def extra_repr(self) -> str:
            raise AttributeError("not yet")

    assert len(fingerprint(Broken())) == 16


def test_uninitialised_parameters_do_not_crash():
    assert fingerprint(nn.LazyLinear(3)) != fingerprint(nn.Linear(2, 3))


def test_the_same_in_another_process():
    code = (
        "from torch import nn; from planner.training_step.fingerprint import fingerprint;"
        "print(fingerprint(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))))"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert out.stdout.strip() == fingerprint(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)))
