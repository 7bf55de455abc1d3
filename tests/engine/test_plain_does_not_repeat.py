"""Models whose steps differ by construction are planned, and judged replay by replay."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from engine_runs import assert_clean, assert_same, copied
from torch import Tensor, nn

import planner
from planner.applier import manual_plan
from planner.documents.plan import Cut
from planner.errors import ReplayError
from planner.planning import checks
from planner.planning.probe import Fault
from planner.training_step.step import Step


class Driver:
    """What says how many chunks fit; no part of the model."""

    chunks: Iterator[int] = iter(())


class Elsewhere:
    """Counts calls where nobody puts the count back: in the environment of the process."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        calls = int(os.environ["CHUNKED_CALLS"])
        os.environ["CHUNKED_CALLS"] = str(calls + 1)
        return 2 ** int(calls // 3 // 5 ** (calls % 3) % 5)


class Block(nn.Module):
    """Attends in as many chunks as the driver says, another number at each call."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        queries = h.chunk(next(Driver.chunks), 1)
        attended = torch.cat([torch.softmax(q @ h.mT, -1) @ h for q in queries], 1)
        return x + self.down(torch.sin(self.up(attended)))


def step(model: nn.Module) -> None:
    model(torch.linspace(-1, 1, 2 * 32 * 8).view(2, 32, 8)).square().mean().backward()


def gradients(model: nn.Module, chunks: list[int]) -> list[Tensor]:
    Driver.chunks = itertools.cycle(chunks)
    step(model)
    found = copied([p.grad for p in model.parameters()])
    model.zero_grad()
    return found


def model() -> nn.Sequential:
    torch.manual_seed(0)
    Driver.chunks = itertools.cycle([4, 2])
    return nn.Sequential(*(Block() for _ in range(3)))


def test_chunks_that_differ_from_call_to_call() -> None:
    net = model()
    plain = copy.deepcopy(net)
    plan = planner.plan(net, budget_mb="75%", step=step)
    assert plan.segments
    with planner.apply(net, plan):
        for chunks in ([4, 2], [2, 4], [4, 2], [2, 2], [4, 4]):
            assert_same(gradients(plain, chunks), gradients(net, chunks))
    assert_clean()


def test_steps_that_never_repeat_are_judged_by_their_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where plain steps differ, replays are compared with checksums, and that is said."""
    net = model()
    monkeypatch.setenv("CHUNKED_CALLS", "3")
    Driver.chunks = Elsewhere()
    run, plan = Step(net, None, None, step, None), manual_plan(net, ["0", "1", "2"])
    with pytest.warns(RuntimeWarning, match="differ without a plan"):
        checks.check_same_results(run, plan)
    fault = Fault("0", "0.up", "its replay differs: aten.addmm.default")
    monkeypatch.setattr(checks, "probe", lambda *args, **options: [fault])
    with pytest.raises(planner.PlannerError, match="its replay differs"):
        checks.check_same_results(run, plan)


def test_steps_that_never_repeat_are_verified_by_their_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = model()
    monkeypatch.setenv("CHUNKED_CALLS", "3")
    Driver.chunks = Elsewhere()
    found = planner.verify(net, manual_plan(net, ["0", "1", "2"]), step=step, repeats=1)
    assert (found.compared, found.plain_repeats, found.ok) == ("replays", False, True)
    assert "plain steps    differ from each other" in str(found)


def test_steps_that_repeat_are_compared_without_a_word() -> None:
    net = model()
    Driver.chunks = itertools.cycle([2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks.check_same_results(
            Step(net, None, None, step, None), manual_plan(net, ["0", "1", "2"])
        )


class InPlaceSin(torch.autograd.Function):
    """Computes its gradient in the memory of the tensor that it saved, as fused kernels do."""

    @staticmethod
    def forward(ctx, h):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(h)
        return h.sin()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (h,) = ctx.saved_tensors
        return h.cos_().mul_(grad)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        gate = torch.sigmoid(h)
        return x + InPlaceSin.apply(h) * 0.1 + gate


@pytest.mark.parametrize("cut", [None, "sigmoid", "sin"])
def test_a_function_writes_into_its_saved_tensor(cut: str | None) -> None:
    """Gradients are equal, or the replay that would read the overwritten tensor is refused."""
    torch.manual_seed(0)
    net = nn.Sequential(Gated(), nn.Linear(8, 3))
    plain = copy.deepcopy(net)
    plan = manual_plan(net, ["0"])
    if cut is not None:
        segment = dataclasses.replace(plan.segments[0], cuts=(Cut(f"0/{cut}/0", 1),))
        plan = dataclasses.replace(plan, segments=(segment,))
    x = torch.randn(4, 8)

    def grads(model: nn.Module) -> list[Tensor]:
        model(x).square().mean().backward()
        found = copied([p.grad for p in model.parameters()])
        model.zero_grad()
        return found

    want = grads(plain)
    with planner.apply(net, plan):
        for _ in range(3):
            try:
                assert_same(want, grads(net))
            except ReplayError as error:
                assert cut is not None and "modified in place" in error.what
                net.zero_grad()
