"""Triton's launch hooks mark a segment. Triton itself is not needed: a stand-in has its hooks."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import planner
from planner.applier.apply import apply, manual_plan
from planner.replay.content import Contents
from planner.replay.launches import LAUNCH, watch_launches
from planner.training_step.step import make_step
from planner.verifier import verify_plan


class HookChain:
    """Calls what was added, as the hook chain of Triton's knobs does."""

    def __init__(self) -> None:
        self.calls = []

    def add(self, call) -> None:
        self.calls.append(call)

    def __call__(self, metadata) -> None:
        for call in self.calls:
            call(metadata)


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> HookChain:
    chain = HookChain()
    triton = ModuleType("triton")
    triton.knobs = SimpleNamespace(runtime=SimpleNamespace(launch_enter_hook=chain))
    with monkeypatch.context() as imported:  # torch itself must not find it
        imported.setitem(sys.modules, "triton", triton)
        watch_launches()
    # On a GPU nobody looks at contents; here too only the hook may tell.
    monkeypatch.setattr(Contents, "changed", lambda self, slot, tensor: False)
    return chain


def net(chain: HookChain) -> nn.Sequential:
    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.zeros_like(x)
            chain(None)
            y.detach().numpy()[...] = x.detach().numpy() ** 2  # out of torch's sight
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return grad * 2 * x + 0 * y

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return torch.tanh(self.out(Kernel.apply(self.fc(x))))

    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block())


def test_what_a_launched_kernel_may_have_written_is_kept(chain: HookChain) -> None:
    model, x = net(chain), torch.randn(16, 8)
    found = verify_plan(make_step(model, inputs=x), manual_plan(model, ["0", "1", "2"]))
    assert found.gradients_equal and found.outputs_equal and found.replayed_ops > 0


def test_a_followed_run_expects_the_launch(chain: HookChain) -> None:
    model, x = net(chain), torch.randn(16, 8)
    with apply(model, manual_plan(model, ["1"])) as handle:
        for _ in range(3):
            model(x).sum().backward()
        (recipe,) = handle._runtime.recipes
        assert len(recipe.programs) == 1
        assert sum(record.func is LAUNCH for record in recipe.programs[0].records) == 1


def test_a_plan_over_launched_kernels_trains_the_same(chain: HookChain) -> None:
    model, x = net(chain), torch.randn(256, 8)
    plan = planner.plan(model, budget_mb="90%", inputs=x)
    assert planner.verify(model, plan, inputs=x).ok
