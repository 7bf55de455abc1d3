"""The C++ core follows and replays as the Python path does, and hands over without losing anything.

The core is compiled on first use, so these tests run only where `PLANNER_ENGINE=native` is set; the
engine's other tests run on it too, then.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.applier.manual import manual_plan
from planner.replay.native.build import engine
from planner.replay.native.tape import NativeTape, new_tape
from planner.replay.recipe import Recipe

pytestmark = pytest.mark.skipif(
    engine().name != "native", reason=f"the native engine does not run: {engine().reason}"
)


class Block(nn.Module):
    """Dropout, an in-place op, a number that changes, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.alpha, self.branch, self.fails = 0.5, False, False

    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.dropout(self.up(x).relu_(), 0.25) * self.alpha
        if self.branch:
            y = y.sin()
        if self.fails:
            raise ArithmeticError
        return x + self.down(y.cos())


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture
def pair() -> tuple[nn.Sequential, nn.Sequential, object]:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(Block(), Block()))
    handle = planner.apply(models[1], manual_plan(models[1], ["0", "1"]))
    return models[0], models[1], handle


def change(name: str, value: object) -> Callable[[nn.Module], None]:
    return lambda model: setattr(model[0], name, value)


@pytest.mark.parametrize(
    "changes",
    [[], [change("alpha", 0.75)], [change("branch", True)], [change("branch", True)] * 4]
    + [[change("branch", True), change("branch", False)] * 3],
    ids=["same", "a number", "a branch", "a branch for good", "a branch now and then"],
)
def test_gradients_are_those_of_the_plain_model(pair, changes) -> None:
    plain, planned, _ = pair
    x = torch.randn(4, 8)
    for step in range(4 + len(changes)):
        if step >= 3 and step - 3 < len(changes):
            for model in (plain, planned):
                changes[step - 3](model)
        wanted, found = gradients(plain, x), gradients(planned, x)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_the_core_follows_what_was_recorded(pair) -> None:
    _, planned, handle = pair
    assert handle.engine == "native"
    before = handle.replayed_ops
    for _ in range(3):
        gradients(planned, torch.randn(4, 8))
    recipe = next(r for r in gc.get_objects() if isinstance(r, Recipe) and r.tables)
    assert recipe.tables[0].template is not None and recipe.tables[0].handed_over == []
    assert type(new_tape(recipe)) is NativeTape
    assert handle.replayed_ops > before


def test_another_size_is_handed_over_and_learned(pair) -> None:
    plain, planned, _ = pair
    for rows in (4, 4, 6, 6, 4, 6):
        x = torch.randn(rows, 8)
        wanted, found = gradients(plain, x), gradients(planned, x)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_an_error_inside_leaves_nothing_open(pair) -> None:
    plain, planned, _ = pair
    x = torch.randn(4, 8)
    gradients(planned, x)
    planned[0].fails = True
    for _ in range(2):
        with pytest.raises(ArithmeticError):
            planned(x)
    planned[0].fails = False
    wanted, found = gradients(plain, x), gradients(planned, x)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_gradient_inside_a_segment(pair) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x).tanh().exp()
            (inner,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            return y * inner.detach()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Inner())
    x = torch.randn(4, 8)
    wanted = gradients(model, x)
    planner.apply(model, manual_plan(model, ["1"]))
    for _ in range(3):
        found = gradients(model, x)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_a_source_that_was_written_is_an_error(pair) -> None:
    _, planned, _ = pair
    for _ in range(2):
        gradients(planned, torch.randn(4, 8))
    x = torch.randn(4, 8)
    loss = planned(x).sum()
    with torch.no_grad():
        planned[0].up.weight.add_(1)
    with pytest.raises(planner.ReplayError, match="modified in place"):
        loss.backward()


def test_nothing_outlives_a_step(pair) -> None:
    _, planned, _ = pair
    for _ in range(3):
        gradients(planned, torch.randn(4, 8))
    x = torch.randn(4, 8)
    seen = weakref.ref(x)
    planned(x).sum().backward()
    del x
    gc.collect()
    assert seen() is None
