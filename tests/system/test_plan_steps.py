"""Plans for steps of the user's own, for an optimizer, for budgets that need nothing, with pins."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import (
    same_tensors,
    seed_all,
    small_net,
    step_on,
    untouched,
)

import planner

UserStep = Callable[[nn.Module], Any]


pytestmark = pytest.mark.usefixtures("empty_folder")


# -- a step of the user's own ----------------------------------------------------------------------


def own_loss(x: Tensor) -> UserStep:
    """Its own loss, by a function outside the model."""

    def step(model: nn.Module) -> None:
        nn.functional.binary_cross_entropy_with_logits(model(x), (x[:, :1] > 0).float()).backward()

    return step


def autocast(x: Tensor) -> UserStep:
    """Forward in bfloat16."""

    def step(model: nn.Module) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().pow(2).mean()
        loss.backward()

    return step


def scaled_loss(x: Tensor) -> UserStep:
    """Scale the loss and unscale the gradients, as a GradScaler does."""

    def step(model: nn.Module) -> None:
        (model(x).pow(2).mean() * 1024).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(1024)

    return step


def several_forwards(x: Tensor) -> UserStep:
    """Two forwards, then one backward through both."""

    def step(model: nn.Module) -> None:
        near, far = model(x), model(x * 2)
        (near - far).pow(2).mean().backward()

    return step


def gradient_penalty(x: Tensor) -> UserStep:
    """A backward through a backward."""

    def step(model: nn.Module) -> None:
        given = x.clone().requires_grad_()
        out = model(given)
        (slope,) = torch.autograd.grad(out.sum(), given, create_graph=True)
        (out.mean() + slope.pow(2).sum(1).sub(1).pow(2).mean()).backward()

    return step


def accumulation(x: Tensor) -> UserStep:
    """Gradients of two micro-batches."""

    def step(model: nn.Module) -> None:
        for part in x.chunk(2):
            (model(part).pow(2).mean() / 2).backward()

    return step


def optimizer_inside(x: Tensor) -> UserStep:
    """The whole step with clipping and the optimizer's update."""

    def step(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


STEPS = [
    own_loss,
    autocast,
    scaled_loss,
    several_forwards,
    gradient_penalty,
    accumulation,
    optimizer_inside,
]


@pytest.mark.parametrize("kind", STEPS)
def test_own_step(kind: Callable[[Tensor], UserStep]) -> None:
    net, x = small_net()
    step = kind(x)
    if kind is gradient_penalty:  # all of its forward lives to the end: forced, not needed
        how: dict[str, Any] = {"budget_mb": "150%", "recompute": ["blocks.*"]}
    else:
        how = {"budget_mb": "80%"}
    with untouched(net):
        plan = planner.plan(net, step=step, **how)
        verified = planner.verify(net, plan, step=step, repeats=1)
    assert verified.ok, str(verified)
    assert plan.segments and verified.replayed_ops > 0
    assert verified.measured_peak_bytes <= plan.budget_bytes
    assert plan.step.root_calls == (2 if kind in (several_forwards, accumulation) else 1)
    assert plan.step.autocast == ("bfloat16" if kind is autocast else "")
    twin = copy.deepcopy(net)
    seed_all(5)
    step(net)
    with planner.apply(twin, plan):
        seed_all(5)
        step(twin)
    assert same_tensors(net.state_dict(), twin.state_dict())
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_optimizer_is_counted_and_its_state_kept() -> None:
    net, x = small_net()
    sizes = sum(p.numel() * p.element_size() for p in net.parameters())
    alone = planner.profile(net, inputs=(x,))
    optimizer = torch.optim.AdamW(net.parameters())
    with untouched(net, optimizer):
        together = planner.profile(net, inputs=(x,), optimizer=optimizer)
    assert not optimizer.state  # made in the step, and taken back
    assert together.plain_peak_bytes >= alone.plain_peak_bytes + 2 * sizes
    assert together.step.optimizer == "AdamW"
    kept = sum(s.bytes for s in together.storages if s.category == "optimizer" and s.birth < 0)
    assert kept >= 2 * sizes
    plan = planner.plan(net, budget_mb="85%", inputs=(x,), optimizer=optimizer)
    assert planner.verify(net, plan, inputs=(x,), optimizer=optimizer, repeats=1).ok


# -- never worse than nothing ----------------------------------------------------------------------


def test_budget_that_plain_meets_gives_an_empty_plan() -> None:
    net, x = small_net()
    profile = planner.profile(net, inputs=(x,))
    for budget in ("100%", f"{profile.plain_peak_bytes}B", "2GB"):
        for how in ({"inputs": (x,)}, {"profile": profile}):
            plan = planner.plan(net, budget_mb=budget, **how)
            assert plan.status == "empty" and not plan.segments
            assert plan.predicted_overhead_ratio == 0
    with planner.apply(net, plan) as handle:
        inner = [module for module in net.modules() if module is not net]
        assert not any(module._forward_pre_hooks for module in inner)  # the root is watched
        step_on(x)(net)
        assert handle.replayed_ops == 0


def test_one_byte_less_than_plain_is_met() -> None:
    net, x = small_net()
    plain = planner.profile(net, inputs=(x,)).plain_peak_bytes
    plan = planner.plan(net, budget_mb=f"{plain - 1}B", inputs=(x,))
    assert plan.segments and plan.measured_peak_bytes < plain


def test_pins_are_followed() -> None:
    net, x = small_net()
    profile = planner.profile(net, inputs=(x,))
    saved = planner.plan(net, budget_mb="75%", profile=profile, save=["blocks.0", "blocks.1"])
    spared = {"blocks.0", "blocks.1"}
    kept = [a for s in saved.segments for a in s.keep if ".".join(a.split(".")[:2]) in spared]
    opened = [s for s in saved.segments if s.start.unit.startswith(tuple(spared))]
    assert saved.pins.save == ("blocks.0", "blocks.1")
    assert all(s.keep for s in opened) or kept or not opened
    forced = planner.plan(net, budget_mb="100%", profile=profile, recompute=["blocks.2"])
    assert forced.segments
    for plan in (saved, forced):
        assert planner.verify(net, plan, inputs=(x,), repeats=1).ok
