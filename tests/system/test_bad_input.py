"""Whatever is wrong with what a user gives, the error says so, and nothing is left half done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from zoo import Net, small_net, untouched

import planner

pytestmark = pytest.mark.usefixtures("empty_folder")


# -- budgets and names -----------------------------------------------------------------------------

BUDGETS = [0, -1, 0.0, float("nan"), float("inf"), "", "0", "0%", "-5MB", "many", "3 apples", None]


@pytest.mark.parametrize("budget", [*BUDGETS, True, [300], "1e400MB", "300MB300"])
def test_budget_that_is_no_size(budget: Any) -> None:
    net, x = small_net()
    with untouched(net):
        refused(planner.InvalidBudgetError, lambda: planner.plan(net, budget_mb=budget, inputs=x))


def test_budget_below_the_floor(profile: planner.Profile) -> None:
    net, x = small_net()
    for how in ({"inputs": x}, {"profile": profile}):
        with untouched(net):
            error = refused(
                planner.InfeasibleBudgetError,
                lambda how=how: planner.plan(net, budget_mb=0.001, **how),
                "parameters",
                "B",
            )
        assert isinstance(error, planner.InfeasibleBudgetError)
        assert error.budget_bytes == 1048 < error.min_peak_bytes < profile.plain_peak_bytes
        assert error.holders and all(size > 0 for _, size in error.holders)
        assert sum(size for _, size in error.holders) <= error.min_peak_bytes
        met = planner.plan(net, budget_mb=f"{error.min_peak_bytes}B", **how)
        assert planner.verify(net, met, inputs=x, repeats=1).ok


@pytest.mark.parametrize("pin", ["save", "recompute"])
def test_pin_that_names_no_unit(pin: str, profile: planner.Profile) -> None:
    net, x = small_net()
    for how in ({"inputs": x}, {"profile": profile}):
        with untouched(net):
            error = refused(
                planner.UnknownUnitError,
                lambda how=how: planner.plan(net, budget_mb="65%", **how, **{pin: ["block.1"]}),
                "block.1",
            )
        assert isinstance(error, planner.UnknownUnitError)
        assert error.name == "block.1" and "blocks.1" in error.near


def test_pins_that_contradict_each_other(profile: planner.Profile) -> None:
    net, _ = small_net()
    with pytest.raises(planner.PlannerError, match=r"blocks\.1"):
        planner.plan(
            net, budget_mb="65%", profile=profile, save=["blocks.1"], recompute=["blocks.1"]
        )


def test_search_that_does_not_exist(profile: planner.Profile) -> None:
    net, _ = small_net()
    with pytest.raises(planner.PlannerError, match="unknown search method 'magic'"):
        planner.plan(net, budget_mb="65%", profile=profile, search="magic")


# -- models and inputs -----------------------------------------------------------------------------


class Raises(nn.Module):
    """A forward that raises after it counted the call and wrote a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Raise."""
        self.calls += 1
        self.seen += 1
        raise ValueError(f"cannot take {tuple(self.linear(x).shape)}")


CALLS = [planner.profile, lambda model, **how: planner.plan(model, budget_mb="65%", **how)]


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
@pytest.mark.parametrize(
    "model", [nn.ReLU(), nn.Sequential(), nn.Linear(32, 2).requires_grad_(False)]
)
def test_nothing_to_train(call: Callable[..., object], model: nn.Module) -> None:
    x = torch.ones(4, 32)
    with untouched(model):
        refused(planner.InvalidModelError, lambda: call(model, inputs=x))


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
def test_forward_that_raises(call: Callable[..., object]) -> None:
    model = Raises()
    with untouched(model):
        error = refused_step(lambda: call(model, inputs=torch.ones(2, 4)))
    assert "cannot take (2, 4)" in str(error)
    assert isinstance(error.__cause__, ValueError)
    net, _ = small_net()
    with untouched(net):
        refused_step(lambda: call(net, inputs=torch.ones(2, 33)))
        refused_step(lambda: call(net, inputs={"wrong": torch.ones(2, 32)}))


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
def test_loss_that_is_no_scalar(call: Callable[..., object]) -> None:
    net, x = small_net()
    with untouched(net):
        error = refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: out))
        assert "(256, 1)" in error.numbers
        refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: 3.0))
        refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: out.detach().sum()))
        refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: out.nothing))


def test_own_step_that_raises_or_does_nothing() -> None:
    net, x = small_net()

    def fails(model: nn.Module) -> None:
        model(x).sum().backward()
        raise RuntimeError("out of patience")

    with untouched(net):
        error = refused_step(lambda: planner.plan(net, budget_mb="65%", step=fails))
    assert "out of patience" in str(error)
    with untouched(net), pytest.raises(planner.PlannerError):
        planner.plan(net, budget_mb="1KB", step=lambda model: None)


def refused_step(call: Callable[[], object]) -> planner.StepError:
    """Assert that a call raises a `StepError` that says what and what next."""
    with pytest.raises(planner.StepError) as caught:
        call()
    assert caught.value.what and caught.value.fix
    return caught.value


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
def test_inputs_on_another_device(call: Callable[..., object]) -> None:
    net, x = small_net()
    with untouched(net):
        refused(
            planner.InvalidInputsError,
            lambda: call(net, inputs=x.to("meta")),
            "meta",
            "x.to('cpu')",
        )


@pytest.mark.parametrize("inputs", [[torch.ones(2, 32)], 3, "x", {1: torch.ones(2, 32)}])
def test_inputs_of_no_known_form(inputs: Any) -> None:
    net, _ = small_net()
    with untouched(net), pytest.raises(planner.InvalidInputsError) as caught:
        planner.plan(net, budget_mb="65%", inputs=inputs)
    assert caught.value.fix


@pytest.mark.parametrize("model", [Net, "net", None, 3])
def test_model_that_is_none(model: Any, plan: planner.Plan) -> None:
    x = torch.ones(2, 32)
    for call in (
        lambda: planner.plan(model, budget_mb=300, inputs=x),
        lambda: planner.profile(model, inputs=x),
        lambda: planner.apply(model, plan),
    ):
        with pytest.raises(planner.InvalidModelError) as caught:
            call()
        assert caught.value.fix


def test_literal_call_on_what_is_no_model() -> None:
    with pytest.raises(planner.InvalidModelError):
        planner.plan(Net, budget_mb=300)  # type: ignore[arg-type]
