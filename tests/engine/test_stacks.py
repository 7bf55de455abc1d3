"""Blocks with hooks and dispatch modes around some submodules, and segments across their ends."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_runs import assert_clean, assert_same, copied
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import planner
from planner.applier import manual_plan

Context = Callable[[], AbstractContextManager[Any]]


class Counting(TorchDispatchMode):
    """Counts the ops that run in it, but for those that torch adds wherever there are hooks."""

    ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counting.ops += func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


class Halving(TorchDispatchMode):
    """Changes what ops compute."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 0.5 if func is torch.ops.aten.tanh.default else out


def half() -> AbstractContextManager[Any]:
    return saved_tensors_hooks(torch.Tensor.half, torch.Tensor.float)


def nested() -> AbstractContextManager[Any]:
    class Both:
        def __enter__(self) -> None:
            self.parts = [half(), Counting(), save_on_cpu()]
            for part in self.parts:
                part.__enter__()

        def __exit__(self, *error: Any) -> None:
            for part in reversed(self.parts):
                part.__exit__(*error)

    return Both()  # type: ignore[return-value]


class Block(nn.Module):
    """Opens a context around some of its submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 16)
        self.mix, self.down = nn.Linear(16, 16), nn.Linear(16, 8)
        self.context: Context = nullcontext

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x) * x
        with self.context():
            h = self.mix(torch.tanh(self.up(self.norm(y))))
        return x + self.down(F.gelu(torch.sin(h)))


def planned(net: nn.Sequential, edges: tuple[str, str]) -> planner.applier.Handle:
    """Give up a segment of each block, from the beginning of one unit to the end of another."""
    blocks = [str(i) for i in range(len(net))]
    segments = []
    for block in blocks:
        names = [f"{block}.{edge}".rstrip(".") for edge in edges]
        first, last = (manual_plan(net, [name]).segments[0] for name in names)
        segments.append(dataclasses.replace(first, end=last.end))
    plan = dataclasses.replace(manual_plan(net, blocks), segments=tuple(segments))
    from planner.applier.apply import apply

    return apply(net, plan)


def gradients(net: nn.Module, around: Context = nullcontext) -> list[Any]:
    torch.manual_seed(3)
    x = torch.randn(4, 8, requires_grad=True)
    Counting.ops = 0
    with around():
        out = net(x)
    counted = Counting.ops
    out.square().sum().backward()
    found = [*copied([out, x.grad, *(p.grad for p in net.parameters())]), torch.tensor(counted)]
    net.zero_grad()
    return found


CONTEXTS = [half, save_on_cpu, Counting, Halving, nested]
EDGES = [("", ""), ("norm", "down"), ("up", "mix"), ("mix", "down"), ("norm", "up")]


@pytest.mark.filterwarnings("ignore:segment .* a dispatch mode")
@pytest.mark.parametrize("context", CONTEXTS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("edges", EDGES, ids=lambda e: "..".join(e) or "block")
def test_a_context_around_some_submodules(context: Context, edges: tuple[str, str]) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(*(Block() for _ in range(3)))
    other = copy.deepcopy(net)
    want_other = gradients(other)
    before = torch.utils._python_dispatch.is_in_torch_dispatch_mode()  # other tests leave modes
    handle = planned(net, edges)
    plain = copy.deepcopy(other)
    # Not in every step, so that a step that was recorded without it is followed with it.
    for used in (False, True, True, False, True):
        for model in (net, plain):
            for block in model:
                block.context = context if used else nullcontext
        assert_same(gradients(plain), gradients(net))
        assert_clean()
        assert torch.utils._python_dispatch.is_in_torch_dispatch_mode() is before
    assert_same(want_other, gradients(other))
    assert handle.replayed_ops > 0


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda c: c.__name__)
def test_a_context_around_the_whole_forward(context: Context) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(*(Block() for _ in range(3)))
    plain = copy.deepcopy(net)
    handle = planned(net, ("norm", "down"))
    for around in (context, nullcontext, context):
        assert_same(gradients(plain, around), gradients(net, around))
        assert_clean()
    assert handle.replayed_ops > 0


def test_a_mode_that_ends_inside_a_segment_is_named_once() -> None:
    net = nn.Sequential(Block(), Block())
    net[1].context = Counting
    planned(net, ("mix", "down"))
    with pytest.warns(
        RuntimeWarning, match=r"segment 1\.mix \.\. 1\.down: a dispatch mode"
    ) as told:
        for _ in range(3):
            gradients(net)
    assert len(told) == 1


def test_hooks_around_one_submodule_leave_the_rest_of_the_plan_feasible() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(*(Block() for _ in range(4)))
    net[1].context = half
    x = torch.randn(64, 8)

    def step(model: nn.Module) -> None:
        model(x).square().sum().backward()

    plan = planner.plan(net, budget_mb="80%", step=step)
    assert plan.segments
