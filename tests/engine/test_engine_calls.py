"""Ways of calling autograd and the model that an applied plan must not disturb.

Each test trains copies of one model, plain and with units given up, and compares every bit.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from call_scenarios import Net, Part, batch, compare, results
from engine_runs import assert_same, give_up, weighted_sum
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from planner.applier.apply import apply, manual_plan

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


def test_gradient_penalty() -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        (gradient,) = torch.autograd.grad(weighted_sum(model(x)), x, create_graph=True)
        (gradient.square().sum() + gradient.sin().sum()).backward()
        return gradient, x.grad

    compare(scenario)


def test_second_order_twice() -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        value = weighted_sum(model(x))
        for _ in range(2):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            value = gradient.square().sum()
        value.backward()
        return value, x.grad

    torch.manual_seed(1)
    model = Net()
    for part in model.parts:
        part.norm = nn.LayerNorm(16)  # batch norm has no third derivative
    compare(scenario, model)


class Energy(nn.Module):
    """Takes a gradient inside its forward."""

    def __init__(self, create: bool) -> None:
        super().__init__()
        self.layer, self.create = Part(), create

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            y = self.layer(x)
            energy = (y * y.sin()).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=self.create, retain_graph=True)
        return y * 0.5 + force.tanh()


@pytest.mark.parametrize("create", [False, True])
def test_gradient_inside_a_unit(create: bool) -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        out = model(x)
        weighted_sum(out).backward()
        return out, x.grad

    torch.manual_seed(1)
    compare(scenario, nn.Sequential(Energy(create), Part()), ("0", "1"))


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("keep", ["bernoulli_.float", "div_.Scalar", "sin", "mul_.Tensor"])
def test_gradient_inside_a_unit_that_keeps_values(create: bool, keep: str) -> None:
    """What the plan keeps stands in for the ops before it, also while the unit still runs."""

    def scenario(model: nn.Module) -> Any:
        x = batch()
        weighted_sum(model(x)).backward()
        return x.grad

    torch.manual_seed(1)
    model = nn.Sequential(Energy(create))
    planned = copy.deepcopy(model)
    plan = manual_plan(planned, ["0"])
    units = ("0", "0.layer", "0.layer.drop", "0.layer.norm")
    kept = tuple(f"{unit}/{keep}/{number}" for unit in units for number in range(2))
    handle = apply(planned, replace(plan, segments=(replace(plan.segments[0], keep=kept),)))
    assert_same(results(scenario, model), results(scenario, planned))
    assert handle.replayed_ops > 0


def test_two_backwards_with_retained_graph() -> None:
    def scenario(model: nn.Module) -> Any:
        out = model(batch())
        weighted_sum(out).backward(retain_graph=True)
        weighted_sum(out.sin()).backward(retain_graph=True)
        weighted_sum(out.exp()).backward()

    compare(scenario)


def test_partial_gradients_one_after_another() -> None:
    def scenario(model: nn.Module) -> Any:
        out = model(batch())
        parameters = list(model.parameters())
        first = torch.autograd.grad(weighted_sum(out), parameters[-2:], retain_graph=True)
        second = torch.autograd.grad(weighted_sum(out), parameters[:4])
        return first, second

    compare(scenario)


def test_several_forwards_before_backwards_in_any_order() -> None:
    def scenario(model: nn.Module) -> Any:
        losses = [weighted_sum(model(batch(rows))) for rows in (4, 3, 4, 5)]
        for number in (2, 0, 3, 1):
            losses[number].backward()
        return losses

    compare(scenario)


def test_gradient_accumulation() -> None:
    def scenario(model: nn.Module) -> Any:
        for rows in (4, 4, 3):
            weighted_sum(model(batch(rows))).backward()

    compare(scenario)


class Checkpointed(nn.Module):
    """Uses torch's own checkpoint inside."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.reentrant = Part(), Part(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(checkpoint(self.inner, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "units",
    [("0", "1"), ("0.inner", "1.inner"), ("0.outer", "1.outer"), ("0.inner.up", "1.inner.down")],
)
def test_checkpoint_inside_and_around(reentrant: bool, units: tuple[str, ...]) -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        out = model(x)
        weighted_sum(out).backward()
        return out, x.grad

    torch.manual_seed(1)
    model = nn.Sequential(Checkpointed(reentrant), Checkpointed(reentrant))
    planned = copy.deepcopy(model)
    give_up(*units)(planned)
    assert_same(results(scenario, model), results(scenario, planned))


def test_functional_transforms_step_aside() -> None:
    def scenario(model: nn.Module) -> Any:
        parameters = dict(model.named_parameters())
        buffers = dict(model.named_buffers())

        def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
            return weighted_sum(torch.func.functional_call(model, (given, buffers), (x,)))

        gradients = torch.func.grad(loss)(parameters, batch().detach())
        weighted_sum(model(batch())).backward()
        return gradients

    model = Net()
    for part in model.parts:
        part.norm = nn.LayerNorm(16)
        part.drop = nn.Identity()
    compare(scenario, model)


def test_per_sample_gradients_inside_a_unit() -> None:
    class PerSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            def energy(row: Tensor) -> Tensor:
                return (row @ self.weight).sin().sum()

            return torch.func.vmap(torch.func.grad(energy))(x) * x.exp()

    def scenario(model: nn.Module) -> Any:
        x = batch()
        weighted_sum(model(x)).backward()
        return x.grad

    torch.manual_seed(1)
    compare(scenario, nn.Sequential(PerSample(), Part()), ("0", "1"))


def test_functional_call_trains_other_weights() -> None:
    def scenario(model: nn.Module) -> Any:
        given = {n: (p.detach() * 1.1).requires_grad_() for n, p in model.named_parameters()}
        out = torch.func.functional_call(model, given, (batch(),))
        return torch.autograd.grad(weighted_sum(out), list(given.values()))

    compare(scenario)


def test_forward_mode_gradients_step_aside() -> None:
    def scenario(model: nn.Module) -> Any:
        model.eval()
        with torch.autograd.forward_ad.dual_level():
            x = torch.autograd.forward_ad.make_dual(batch().detach(), torch.ones(4, 8))
            tangent = torch.autograd.forward_ad.unpack_dual(model(x)).tangent
        weighted_sum(model(batch())).backward()
        return tangent

    compare(scenario)


def test_evaluation_between_steps() -> None:
    def scenario(model: nn.Module) -> Any:
        model.train()
        weighted_sum(model(batch())).backward()
        model.eval()
        with torch.no_grad():
            first = model(batch())
        with torch.inference_mode():
            second = model(batch()).clone()
        third = model(batch())
        weighted_sum(third).backward()
        model.train()
        return first, second, third

    compare(scenario)


def test_parts_without_gradients() -> None:
    def scenario(model: nn.Module) -> Any:
        with torch.no_grad():
            x = model.parts[0](batch())
        out = model.parts[2](model.parts[1](x))
        weighted_sum(out).backward()
        return out

    compare(scenario)


def test_frozen_parts() -> None:
    def scenario(model: nn.Module) -> Any:
        out = model(batch().detach())
        weighted_sum(out).backward()
        return out

    torch.manual_seed(1)
    model = Net()
    model.parts[0].requires_grad_(False)
    model.parts[1].norm.requires_grad_(False)
    compare(scenario, model)
