"""`applied` and `apply` leave a model as it was, also where a hook cannot be installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import planner
from planner.applier.manual import manual_plan
from planner.applier.running import applied
from planner.applier.runtime import Runtime


class Refusing(nn.Linear):
    """A layer that takes no forward hook."""

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no hooks here")


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def net(last: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), last(4, 4))


def test_the_plan_is_there_within_the_block_only() -> None:
    model = net()
    runtime = Runtime(manual_plan(model, ["0"]))
    with applied(model, runtime):
        assert hooks_of(model)
        model(torch.ones(2, 4)).sum().backward()
    assert hooks_of(model) == 0 and runtime.replayed.ops > 0


def test_an_error_within_the_block_takes_the_plan_off() -> None:
    model = net()
    with pytest.raises(KeyError), applied(model, Runtime(manual_plan(model, ["0"]))):
        raise KeyError
    assert hooks_of(model) == 0


def test_a_plan_without_segments_puts_nothing_on() -> None:
    model = net()
    with applied(model, Runtime(manual_plan(model, []))):
        assert hooks_of(model) == 0


def test_an_apply_that_fails_leaves_the_model_as_it_was() -> None:
    model = net(Refusing)
    plan = manual_plan(model, ["0", "1"])
    with pytest.raises(RuntimeError, match="no hooks"):
        planner.apply(model, plan)
    assert hooks_of(model) == 0
    with pytest.raises(RuntimeError, match="no hooks"), applied(model, Runtime(plan)):
        pass
    assert hooks_of(model) == 0


def test_planning_on_the_fly_that_fails_leaves_the_model_as_it_was() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.body(x)
            return y

        def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("prepend"):
                return super().register_forward_hook(*args, **kwargs)
            raise RuntimeError("no hooks here")

    model = Root()
    with pytest.raises(RuntimeError, match="no hooks"):
        planner.apply(model, budget_mb=100)
    assert hooks_of(model) == 0
