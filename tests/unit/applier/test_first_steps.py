"""A run in another situation than the plan's is told so once, with both figures, or refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import planner
from planner.errors import StalePlanError

pytestmark = pytest.mark.usefixtures("nothing_left_behind")


def net(rows: int = 256) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4))
    return nn.Sequential(*layers), torch.randn(rows, 16)


def plan_of(model: nn.Module, x: torch.Tensor, **others: Any) -> planner.Plan:
    return planner.plan(model, budget_mb="80%", inputs=x, **others)


def train(
    model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer | None = None
) -> None:
    for _ in range(3):
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?!the training step)")
            model(x).square().mean().backward()
        if optimizer is not None:
            optimizer.step()


def said(run: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    found = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    return [text for text in found if "the plan was made for" in text]


def test_nothing_is_said_in_the_plans_own_situation() -> None:
    model, x = net()
    optimizer = torch.optim.AdamW(model.parameters())
    plan = plan_of(model, x, optimizer=optimizer)
    assert plan.step.mode == "train" and plan.step.optimizer_state_bytes > 0
    with planner.apply(model, plan):
        assert said(lambda: train(model, x, optimizer)) == []
        assert said(lambda: train(model, x[:7], optimizer)) == []
        model.eval()
        assert said(lambda: train(model, x)) == []


def in_train_mode(model: nn.Module, x: torch.Tensor) -> None:
    train(model.train(), x)


def on_more_rows(model: nn.Module, x: torch.Tensor) -> None:
    train(model, torch.cat([x, x]))


def with_an_optimizer(model: nn.Module, x: torch.Tensor) -> None:
    train(model, x, torch.optim.AdamW(model.parameters()))


def under_autocast(model: nn.Module, x: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        train(model, x)


def adding_to_gradients(model: nn.Module, x: torch.Tensor) -> None:
    for _ in range(3):
        model(x).square().mean().backward()


OTHERS = [
    (in_train_mode, "mode", "eval mode in the plan, train mode"),
    (on_more_rows, "inputs", r"\[256, 16\] float32 in the plan, args\[0\] \[512, 16\]"),
    (with_an_optimizer, "optimizer", "none with 0 B of state in the plan, AdamW with "),
    (under_autocast, "autocast", "off in the plan, bfloat16"),
    (adding_to_gradients, "gradients at the start", "0 B in the plan, 3"),
]


@pytest.mark.parametrize(("run", "what", "figures"), OTHERS)
def test_another_situation_is_said_once_or_refused(
    run: Callable[[nn.Module, torch.Tensor], None], what: str, figures: str
) -> None:
    model, x = net()
    if run is in_train_mode:
        model.eval()
    plan = plan_of(model, x)
    with planner.apply(model, plan):
        (text,) = said(lambda: run(model, x))
    assert text.startswith("the training step is not the one that the plan was made for: " + what)
    with planner.apply(model, plan, strict=True), pytest.raises(StalePlanError, match=figures):
        run(model, x)


def test_a_step_under_no_grad_is_no_training_step() -> None:
    model, x = net()
    with planner.apply(model, plan_of(model, x), strict=True), torch.no_grad():
        model(torch.cat([x, x]))


def test_a_model_whose_forward_is_never_called() -> None:
    model, x = net()
    with planner.apply(model, plan_of(model, x)):
        optimizer = torch.optim.SGD(model.parameters())

        def run() -> None:
            for _ in range(4):
                model[1](model[0](x)).sum().backward()
                optimizer.step()

        (text,) = said(run)
    assert "calls of Sequential" in text and "none in 3 updates" in text


def test_copies_and_pickles_are_not_watched() -> None:
    model, x = net()
    with planner.apply(model, plan_of(model, x)):
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert said(lambda other=other: on_more_rows(other, x)) == []


def test_the_printed_plan_names_mode_and_optimizer() -> None:
    model, x = net()
    text = str(plan_of(model.eval(), x))
    assert "eval mode" in text and "optimizer: none, its state is not counted" in text
