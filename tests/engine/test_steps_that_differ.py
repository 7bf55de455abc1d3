"""Steps that differ from the recorded one: sizes, branches, settings, writes through arrays."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_runs import assert_clean, assert_same, copied, give_up
from torch import Tensor, nn
from torch.autograd import forward_ad

from planner.errors import ReplayError
from planner.replay.recipe import Recipe
from planner.replay.tape import Tape

Body = Callable[[Tensor], Tensor]


def gradients(net: nn.Module, x: Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    out = net(x)
    out.square().sum().backward()
    found = copied([out, x.grad, *(p.grad for p in net.parameters())])
    net.zero_grad()
    return found


def segment(body: Body, inputs: list[Tensor]) -> Recipe:
    """Run a body as a segment, once for each input, and compare with plain."""
    recipe = Recipe("body")
    for data in inputs:
        found = []
        for planned in (False, True):
            torch.manual_seed(0)
            x = data.clone().requires_grad_()
            tape = Tape(recipe)
            if planned:
                tape.open()
            y = body(x)
            if planned:
                tape.close()
            y.sum().backward()
            assert x.grad is not None
            found.append([y.detach(), x.grad])
        assert_same(*found)
    assert_clean()
    assert recipe.count.ops > 0
    return recipe


class Mixture(nn.Module):
    """Sends each row to one of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        weight, choice = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mine = (choice == index).nonzero().squeeze(-1)
            out = out.index_add(0, mine, expert(x[mine]) * weight[mine, None])
        return x + out


def test_routing_that_changes_every_step_is_followed() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(Mixture(), Mixture())
    plain = copy.deepcopy(net)
    handle = give_up("0", "1")(net)
    for seed in range(6):
        x = torch.randn(12, 8, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        want = gradients(plain, x)
        torch.manual_seed(seed)
        assert_same(want, gradients(net, x))
    assert handle.replayed_ops > 0
    recipes = handle._runtime.recipes
    assert [len(recipe.programs) for recipe in recipes] == [1, 1]


SIZES = [torch.arange(float(n * m)).view(n, m).sin() for n, m in ((4, 6), (7, 6), (1, 6), (5, 3))]


def sums(x: Tensor) -> Tensor:
    return (x.exp() / x.exp().sum(-1, keepdim=True)).sin() * x.numel()


def part_of_a_view(x: Tensor) -> Tensor:
    """The view that is read has the recorded geometry, and the tensor behind it another one."""
    y = x.sin()
    return y.flatten()[:6].exp().sin().sum() + y.sin().sum()


def uninitialized(x: Tensor) -> Tensor:
    y = torch.empty_like(x).copy_(x.sin()).cos()
    return torch.zeros(x.shape[0], 1) + y.exp().sin()


def lists(x: Tensor) -> Tensor:
    y = x.sin()
    parts = [part.exp() for part in y.split(2)]
    return torch.cat([*parts, y]).tanh().sin()


def strides(x: Tensor) -> Tensor:
    y = x.sin().t().contiguous().exp()
    return y.sin().mul_(2).cos()


def branches(x: Tensor) -> Tensor:
    y = x.sin().exp()
    return (y.tanh() if x.shape[0] > 4 else y.sigmoid().sin()).cos().exp()


def data_dependent(x: Tensor) -> Tensor:
    y = x.exp()[x > 0.2]
    return y.sin().exp()[:3].sin().sum() + y.sum()


def numbers(x: Tensor) -> Tensor:
    """A number that changes stands before a list of tensors, some from outside."""
    y = x.sin()
    z = torch.addcmul(y, y, y.exp(), value=1.0 / x.shape[0])
    return torch.cat([z, z.exp(), x], dim=0).sin().sum(0) + torch.index_put(
        z, [torch.arange(1)], y[:1]
    ).exp().sum(0)


@pytest.mark.parametrize(
    "body", [sums, part_of_a_view, uninitialized, numbers, lists, strides, branches, data_dependent]
)
def test_other_sizes(body: Body) -> None:
    segment(body, [*SIZES, *reversed(SIZES)])


@pytest.mark.parametrize("body", [sums, part_of_a_view, uninitialized, numbers, data_dependent])
def test_other_sizes_of_the_same_ops_need_no_other_recording(body: Body) -> None:
    assert len(segment(body, SIZES).programs) == 1


def chunks(x: Tensor) -> Tensor:
    """As many parts as the input says: one part is none, so that another op comes first."""
    parts = x.chunk(int(x.flatten()[0]), 0) if x.flatten()[0] > 1 else (x,)
    return torch.cat([part.exp().sin() * part for part in parts]).tanh().sin()


def skips(x: Tensor) -> Tensor:
    """Leaves out parts whose first op saves what it is given."""
    y = x.exp()
    for number in range(3):
        if int(x.flatten()[0]) != number:
            y = (y + number).sin().exp()
        y = y.tanh() if int(x.flatten()[0]) < number else y.mul(y)
    return y


@pytest.mark.parametrize("body", [chunks, skips])
def test_each_branch_is_recorded_once(body: Body) -> None:
    steps = [torch.full((6, 2), float(n)) for n in (1, 2, 3, 2, 1, 3, 1, 3, 2)]
    assert len(segment(body, steps).programs) == 3


# -- arrays ------------------------------------------------------------------------------------


class Writing(nn.Module):
    """Writes into an activation through an array, in some steps only."""

    def __init__(self, take: Callable[[Tensor], Any], late: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.take, self.late, self.writes = take, late, False

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(x)) + 0
        if self.writes:
            array = self.take(h)
            if not self.late:
                array[..., ::7] *= 0.5
        y = torch.tanh(h)
        if self.writes and self.late:
            array[..., 1::3] *= 0.5
        return x + self.down(y * torch.sin(h))


TAKES: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda h: h.detach().numpy(),
    "asarray": lambda h: np.asarray(h.detach()),
    "dlpack": lambda h: np.from_dlpack(h.detach()),
    "pointer": lambda h: np.ctypeslib.as_array(
        (ctypes.c_float * h.numel()).from_address(h.data_ptr())
    ).reshape(h.shape),
    "view": lambda h: h.detach().view(-1).numpy().reshape(h.shape),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("take", TAKES)
def test_an_array_writes_into_an_activation_in_some_steps(take: str, late: bool) -> None:
    if take == "dlpack":
        pytest.importorskip("numpy", minversion="2.1")  # older ones give arrays to read only
    torch.manual_seed(1)
    net = nn.Sequential(*(Writing(TAKES[take], late) for _ in range(2)))
    plain = copy.deepcopy(net)
    handle = give_up("0", "1")(net)
    for writes in (False, True, True, False, True):
        for model in (net, plain):
            for block in model:
                block.writes = writes
        x = torch.randn(4, 8)
        try:
            want = gradients(plain, x)
        except RuntimeError:
            pytest.skip("torch refuses to write")
        try:
            found = gradients(net, x)
        except ReplayError:
            assert writes and late
            net.zero_grad()
            continue
        assert_same(want, found)
    assert handle.replayed_ops > 0


# -- what a replay must know of the step --------------------------------------------------------


def deterministic() -> AbstractContextManager[Any]:
    class Flag:
        def __enter__(self) -> None:
            torch.use_deterministic_algorithms(True)

        def __exit__(self, *error: object) -> None:
            torch.use_deterministic_algorithms(False)

    return Flag()  # type: ignore[return-value]


@pytest.mark.parametrize(
    "context", [deterministic, lambda: torch.backends.mkldnn.flags(enabled=False)]
)
def test_settings_that_change_from_step_to_step(context: Any) -> None:
    """A followed op that runs under other settings than the recorded one is recorded anew."""
    settings = [nullcontext, context, nullcontext, context]
    recipe = Recipe("body")
    weight = torch.randn(4, 3, 3, 3)
    for setting in settings:
        found = []
        for planned in (False, True):
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
            x.requires_grad_()
            tape = Tape(recipe)
            if planned:
                tape.open()
            y = x.sin()
            with setting():
                y = F.conv2d(y, weight)
            y = y.sin().exp()
            if planned:
                tape.close()
            y.sum().backward()
            found.append(copied([y, x.grad]))
        assert_same(*found)
    assert len(recipe.programs) == 2
    choices = {p.records[1].choices is None for p in recipe.programs}
    assert choices == {True, False}


@pytest.mark.parametrize("inside", [False, True])
def test_forward_mode_levels(inside: bool) -> None:
    """Tangents and gradients are those without a plan, whether or not the level spans segments."""

    class Net(nn.Module):
        level = False

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).sin()
            if inside and self.level:
                with forward_ad.dual_level():
                    dual = self.second(forward_ad.make_dual(y, torch.ones_like(y))).tanh()
                    tangent = forward_ad.unpack_dual(dual).tangent
                    assert tangent is not None
                    y = y + tangent.sin()
            return self.second(y).sin()

    torch.manual_seed(1)
    net = nn.Sequential(Net(), Net())
    plain = copy.deepcopy(net)
    handle = give_up("0", "1")(net)
    x, direction = torch.randn(4, 8), torch.randn(4, 8)
    for level in (False, True, True, False):
        Net.level = level
        results = []
        for model in (plain, net):
            if level and not inside:
                with forward_ad.dual_level():
                    start = x.clone().requires_grad_()
                    out = model(forward_ad.make_dual(start, direction))
                    value, tangent = forward_ad.unpack_dual(out)
                    (value.square().sum() + tangent.sum()).backward()
                    results.append(copied([value, tangent, start.grad]))
            else:
                results.append(gradients(model, x))
            model.zero_grad()
        assert_same(*results)
    assert handle.replayed_ops > 0
