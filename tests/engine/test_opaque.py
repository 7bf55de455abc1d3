"""Memory written by code that no dispatcher sees is kept, or its unit is left out."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import assert_same, give_up, train
from torch import Tensor, nn

import planner


def copy_bytes(target: Tensor, source: np.ndarray[Any, Any]) -> None:
    """Write memory as a C library would."""
    data = np.ascontiguousarray(source)
    ctypes.memmove(target.data_ptr(), data.ctypes.data, data.nbytes)


def write_numpy(target: Tensor, source: np.ndarray[Any, Any]) -> None:
    """Write memory through NumPy's view of it."""
    target.detach().numpy()[...] = source


WRITERS = {"ctypes": copy_bytes, "numpy": write_numpy}
MAKERS: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": torch.empty_like,
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "clone": lambda x: x.detach().clone(),
    "computed": lambda x: x.detach() * 1.0,
    "resized": lambda x: torch.empty(0).resize_(x.shape),
    "new_storage": lambda x: torch.from_numpy(np.zeros(x.shape, dtype=np.float32)),
}


def sine(maker: str, writer: str) -> type[torch.autograd.Function]:
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            y = MAKERS[maker](x)
            WRITERS[writer](y, np.sin(x.detach().numpy()))
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            x, y = ctx.saved_tensors
            return grad * x.cos() + y * 0.125

    return Sine


class FunctionPart(nn.Module):
    def __init__(self, maker: str, writer: str) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 6)
        self.sine = sine(maker, writer)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.sine.apply(self.before(x).tanh()).exp()).tanh()


class PlainPart(nn.Module):
    """The same in the open, as masks and targets are often made."""

    def __init__(self, maker: str, writer: str) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(6, 6), nn.Linear(6, 6)
        self.maker, self.writer = maker, writer

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x).tanh()
        mask = MAKERS[self.maker](y)
        WRITERS[self.writer](mask, np.cos(y.detach().numpy()))
        return self.after((y * mask).exp() * mask.sin()).tanh()


class TwicePart(nn.Module):
    """Memory that is read, written out of sight, and read again."""

    def __init__(self, writer: str) -> None:
        super().__init__()
        self.before, self.writer = nn.Linear(6, 6), writer

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        scratch = y.detach() * 2
        first = y * scratch.exp().clone()
        WRITERS[self.writer](scratch, np.cos(y.detach().numpy()))
        return (first * scratch.sin()).tanh()


@torch.library.custom_op("planner_tests::declared", mutates_args=("y",))
def declared(x: Tensor, y: Tensor) -> Tensor:
    y.copy_(x.sin())
    return x.cos()


@torch.library.custom_op("planner_tests::silent", mutates_args=())
def silent(x: Tensor, y: Tensor) -> Tensor:
    y.detach().numpy()[...] = np.sin(x.detach().numpy())
    return x.cos()


LIBRARY = torch.library.Library("planner_tests_raw", "DEF")
LIBRARY.define("fill(Tensor x, Tensor y) -> Tensor")
LIBRARY.define("draw(Tensor x) -> Tensor")
LIBRARY.impl("fill", lambda x, y: (write_numpy(y, np.sin(x.numpy())), x.cos())[1], "CPU")
LIBRARY.impl("draw", lambda x: x * torch.rand(x.shape), "CPU")


class CustomPart(nn.Module):
    """A custom op that writes one of its arguments."""

    def __init__(self, op: str, target: str) -> None:
        super().__init__()
        self.before, self.op, self.target = nn.Linear(6, 6), op, target
        self.register_buffer("held", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        if self.target == "buffer":
            scratch = self.held
        elif self.target == "zeros":
            scratch = torch.zeros_like(y)
        else:
            scratch = y.detach().exp()
        op = {"declared": declared, "silent": silent, "raw": torch.ops.planner_tests_raw.fill}
        z = op[self.op](y.detach(), scratch)
        return (y * z.exp() * scratch.clone().sin()).tanh() * scratch.clone()


class DrawPart(nn.Module):
    """A custom op that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        return (y.sin() * torch.ops.planner_tests_raw.draw(y.detach()).exp()).tanh()


class CountingPart(nn.Module):
    """A buffer that NumPy counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.register_buffer("steps", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x) * self.steps.clone().cos()
        self.steps.numpy()[...] += 1
        return (y.sin() * self.steps.clone().exp()).tanh()


def inputs(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, 6, generator=torch.Generator().manual_seed(batch)).requires_grad_(),)


PARTS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{kind.__name__}-{maker}-{writer}": lambda k=kind, m=maker, w=writer: k(m, w)
        for kind in (FunctionPart, PlainPart)
        for maker in MAKERS
        for writer in WRITERS
    },
    **{f"TwicePart-{writer}": lambda w=writer: TwicePart(w) for writer in WRITERS},
    **{
        f"CustomPart-{op}-{target}": lambda o=op, t=target: CustomPart(o, t)
        for op in ("declared", "silent", "raw")
        for target in ("buffer", "zeros", "made")
    },
    "DrawPart": DrawPart,
}


class Net(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.wide = part, nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.part(x)).sin()


pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


@pytest.mark.parametrize("name", PARTS)
def test_given_up_by_hand(name: str) -> None:
    torch.manual_seed(3)
    model = Net(PARTS[name]())
    batches = (4, 4, 4) if "buffer" in name else (4, 4, 3, 4)
    plain, _ = train(model, inputs, batches)
    planned, handle = train(model, inputs, batches, give_up("part", "wide"))
    assert_same(plain, planned)
    assert handle is not None
    assert handle.replayed_ops > 0


@pytest.mark.parametrize("name", [*PARTS, "CountingPart"])
def test_a_planned_model_trains_the_same(name: str) -> None:
    torch.manual_seed(3)
    model = Net(CountingPart() if name == "CountingPart" else PARTS[name]())
    x = inputs(4)[0]
    reference = copy.deepcopy(model)
    try:
        plan = planner.plan(model, budget_mb="75%", inputs=(x,))
    except planner.InfeasibleBudgetError as error:
        plan = planner.plan(model, budget_mb=error.min_peak_bytes / 2**20, inputs=(x,))
    found = planner.verify(model, plan, inputs=(x,), repeats=1)
    assert found.gradients_equal
    assert found.outputs_equal
    assert found.buffers_equal
    plain, _ = train(reference, inputs, (4, 4, 4))
    planned, _ = train(reference, inputs, (4, 4, 4), lambda net: planner.apply(net, plan))
    assert_same(plain, planned)
