"""The step may differ from what was recorded: it is computed right, or refused with a reason."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_runs import assert_clean, assert_same, copied, give_up, weighted_sum
from torch import Tensor, nn

import planner

LATER = "modified in place"


class Part(nn.Module):
    """Everything about it can be changed from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop = nn.Dropout(0.25)
        self.alpha: Any = 0.5
        self.branch = False
        self.register_buffer("scale", torch.full((6,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).sin() * self.scale
        if self.branch:
            y = self.second(y).exp().clamp(max=5.0) * y
        return x + self.drop(self.second(y * self.alpha).tanh())


class Net(nn.Module):
    """Two parts, the second called as often as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Part(), Part()
        self.times = 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(self.times):
            x = self.b(x)
        return x


pytestmark = pytest.mark.usefixtures("quiet")


def batch(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, 6, generator=generator).to(dtype).requires_grad_()


def step(model: nn.Module, x: Tensor) -> list[Any]:
    """One step; returns output and gradients."""
    model.zero_grad()
    out = model(x)
    weighted_sum(out).backward()
    return copied([out, *(t.grad for t in (x, *model.parameters()) if t.grad is not None)])


def nothing(model: Net) -> None:
    """Change nothing."""


def change(**values: Any) -> Callable[[Net], None]:
    def apply_change(model: Net) -> None:
        for name, value in values.items():
            setattr(model.b, name, value)

    return apply_change


def replace_inner(model: Net) -> None:
    torch.manual_seed(8)
    model.b.first = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 6))


def replace_whole(model: Net) -> None:
    torch.manual_seed(8)
    model.b = Part()


def replace_weight(model: Net) -> None:
    torch.manual_seed(8)
    model.b.first.weight = nn.Parameter(torch.randn(6, 6))


def swap_data(model: Net) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1


def freeze(model: Net) -> None:
    model.b.first.requires_grad_(False)
    model.a.requires_grad_(False)


def thaw(model: Net) -> None:
    model.requires_grad_(True)


def tie(model: Net) -> None:
    model.b.first.weight = model.a.first.weight


def double(model: Net) -> None:
    model.double()


CHANGES = {
    "nothing": nothing,
    "branch": change(branch=True),
    "scalar": change(alpha=0.75),
    "whole_scalar": change(alpha=2),
    "negative_zero": change(alpha=-0.0),
    "zero": change(alpha=0.0),
    "nan": change(alpha=float("nan")),
    "infinite": change(alpha=float("inf")),
    "true": change(alpha=True),
    "tensor": change(alpha=torch.tensor(0.25)),
    "complex_free": change(alpha=torch.linspace(0.0, 1.0, 6)),
    "parameter": lambda model: model.b.register_parameter("scale2", None),
    "rate": lambda model: setattr(model.b.drop, "p", 0.5),
    "no_rate": lambda model: setattr(model.b.drop, "p", 0.0),
    "eval": lambda model: model.eval(),
    "more_often": lambda model: setattr(model, "times", 3),
    "not_at_all": lambda model: setattr(model, "times", 0),
    "inner": replace_inner,
    "whole": replace_whole,
    "weight": replace_weight,
    "data": swap_data,
    "freeze": freeze,
    "tie": tie,
    "buffer": lambda model: model.b.scale.mul_(0.5),
    "bigger_buffer": lambda model: setattr(model.b, "scale", torch.ones(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_is_followed(name: str) -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here = step(net, batch(4)) + step(net, batch(4))
        CHANGES[name](net)
        here += step(net, batch(4)) + step(net, batch(4)) + step(net, batch(3))
        seen.append(here)
    assert_same(*seen)


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_changes(seed: int) -> None:
    """Changes in random order; many variants of a segment come and go."""
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    generator = torch.Generator().manual_seed(seed)
    names = sorted(set(CHANGES) - {"nan", "infinite"})
    order = torch.randint(0, len(names), (14,), generator=generator).tolist()
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here: list[Any] = []
        for index in order:
            CHANGES[names[index]](net)
            thaw(net)
            net.train(names[index] != "eval")
            here += step(net, batch(2 + index % 3))
        seen.append(here)
    assert_same(*seen)


@pytest.mark.parametrize(
    "inputs",
    [
        [batch(4), batch(5), batch(4), batch(1)],
        [batch(4), batch(2, 3), batch(4), batch(2, 3, 4)],
        [batch(4), batch(4).detach(), batch(4)],
        [batch(4).detach(), batch(4), batch(4).detach()],
        [batch(4), batch(0), batch(4)],
        [batch(4, 3), batch(3, 4).detach().transpose(0, 1), batch(4, 3)],
        [batch(4), torch.ones(6).expand(4, 6), batch(4)],
        [batch(4), torch.arange(48.0).view(8, 6)[::2], batch(4)],
    ],
    ids=[
        "batch",
        "dimensions",
        "no_grad_later",
        "grad_later",
        "empty",
        "transposed",
        "expanded",
        "strided",
    ],
)
def test_other_inputs(inputs: list[Tensor]) -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        seen.append([item for x in inputs for item in step(net, x)])
        for x in inputs:
            x.grad = None
    assert_same(*seen)


def test_autocast_comes_and_goes() -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here: list[Any] = []
        for dtype in (None, torch.bfloat16, torch.float16, None, torch.bfloat16, torch.bfloat16):
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                here += step(net, batch(4))
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                out = net(batch(4))
            net.zero_grad()
            weighted_sum(out).backward()  # outside of autocast
            here += copied([p.grad for p in net.parameters()])
        net.double()
        here += step(net, batch(4, dtype=torch.float64))
        seen.append(here)
    assert_same(*seen)


def test_the_same_input_twice_and_an_alias() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (self.layer(x).sin() * y.exp()).tanh()

    torch.manual_seed(2)
    model = nn.ModuleList([Pair()])
    planned = copy.deepcopy(model)
    give_up("0")(planned)
    x, y = batch(4), batch(3)[:1].detach().expand(4, 6).clone().requires_grad_()
    seen: list[list[Any]] = []
    for net in (model, planned):
        here: list[Any] = []
        for a, b in [(x, y), (x, x), (x, x.detach()), (y, x), (x, x.detach() * 1), (x, y)]:
            net.zero_grad()
            weighted_sum(net[0](a, b)).backward()
            here += copied([p.grad for p in net.parameters()])
        here += copied([x.grad, y.grad])
        x.grad = y.grad = None
        seen.append(here)
    assert_same(*seen)


def assert_refused(model: nn.Module, spoil: Callable[[Any], None], unit: str) -> None:
    """Spoil something between forward and backward; the refusal must name unit and next step."""
    loss = weighted_sum(model(batch(4)))
    spoil(model)
    with pytest.raises(planner.PlannerError) as caught:
        loss.backward()
    text = str(caught.value)
    assert unit in text
    assert "next step" in text
    assert "likely cause" in text


@pytest.mark.parametrize("follow", [False, True])
def test_a_weight_written_between_forward_and_backward(follow: bool) -> None:
    model = Net()
    give_up("b")(model)
    if follow:
        step(model, batch(4))

    @torch.no_grad()
    def spoil(net: Net) -> None:
        net.b.first.weight.add_(1.0)

    assert_refused(model, spoil, "b")
    step(model, batch(4))  # and the next step works


@pytest.mark.parametrize("follow", [False, True])
def test_data_replaced_between_forward_and_backward(follow: bool) -> None:
    """The replay reads the memory that the forward read."""
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        if follow:
            step(net, batch(4))
        net.zero_grad()
        loss = weighted_sum(net(batch(4)))
        for parameter in net.parameters():
            parameter.data = parameter.data * 2
        loss.backward()
        seen.append(copied([p.grad for p in net.parameters()]))
        seen[-1] += step(net, batch(4))
    assert_same(*seen)


def spoil_by_data(net: Net) -> None:
    net.b.first.weight.data.mul_(2.0)


def spoil_by_numpy(net: Net) -> None:
    net.b.first.bias.detach().numpy()[...] += 1.0


def spoil_by_an_unscaled_sign(net: Net) -> None:
    net.b.first.weight.data.neg_()


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("spoil", [spoil_by_data, spoil_by_numpy, spoil_by_an_unscaled_sign])
def test_a_weight_written_out_of_sight_before_backward(
    spoil: Callable[[Net], None], follow: bool
) -> None:
    """No version moves, and autograd itself would use the new numbers in silence."""
    model = Net()
    give_up("b")(model)
    if follow:
        step(model, batch(4))
    assert_refused(model, spoil, "b")
    step(model, batch(4))


def test_one_row_written_out_of_sight_is_seen_by_a_recorded_run() -> None:
    model = Net()
    give_up("b")(model)
    assert_refused(model, lambda net: net.b.first.weight.data[3].zero_(), "b")


class Normed(nn.Module):
    """Both orders of reading and updating one batch norm's statistics."""

    def __init__(self, dims: int, inside: bool) -> None:
        super().__init__()
        kind = nn.BatchNorm1d if dims == 1 else nn.BatchNorm2d
        self.dims, self.inside = dims, inside
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), kind(6 if dims == 1 else 4))
        self.tail = nn.Sequential(nn.Sigmoid(), nn.Linear(6, 6))
        self.twice = Twice(self.body, self.tail)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x if self.dims == 1 else x.view(2, 4, -1, 6)
        if self.inside:
            out: tuple[Tensor, Tensor] = self.twice(x)
            return out
        self.body.eval()
        first = self.tail(self.body(x).sin())
        self.body.train()
        return first, self.tail(self.body(x * 2.0).sin())


class Twice(nn.Module):
    """Evaluation mode, then training mode, in one unit."""

    def __init__(self, body: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.parts = [body, tail]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        body, tail = self.parts
        body.eval()
        first = tail(body(x).sin().cos())
        body.train()
        return first, tail(body(x * 2.0).sin().cos())


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("units", [("body", "tail"), ("twice",)])
def test_statistics_change_before_the_backward_of_an_evaluation(
    units: tuple[str, ...], dims: int
) -> None:
    torch.manual_seed(5)
    model = Normed(dims, units == ("twice",))
    planned = copy.deepcopy(model)
    planned.twice.parts = [planned.body, planned.tail]
    handle = give_up(*units)(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        seen.append([])
        for _ in range(3):
            net.zero_grad()
            weighted_sum(net(batch(16))).backward()
            seen[-1] += copied([p.grad for p in net.parameters()] + list(net.buffers()))
    assert_same(*seen)
    assert handle.replayed_ops


def test_a_buffer_written_between_forward_and_backward() -> None:
    model = Net()
    give_up("b")(model)
    assert_refused(model, lambda net: net.b.scale.mul_(2.0), "b")
    step(model, batch(4))


def test_an_input_written_between_forward_and_backward() -> None:
    model = Net()
    give_up("a")(model)
    x = batch(4).detach()
    loss = weighted_sum(model(x))
    x.mul_(2.0)
    with pytest.raises(planner.PlannerError, match="segment a"):
        loss.backward()


def test_a_second_backward_without_retain() -> None:
    model = Net()
    give_up("a", "b")(model)
    loss = weighted_sum(model(batch(4)))
    loss.backward()
    with pytest.raises((planner.PlannerError, RuntimeError), match="retain_graph|second time"):
        loss.backward()
    step(model, batch(4))


class OtherBackend(nn.Module):
    """Chooses other kernels for its own ops."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.backends.mkldnn.flags(enabled=False):  # type: ignore[no-untyped-call]
            out: Tensor = self.inner(x)
        return out


@pytest.mark.parametrize("inside", [False, True])
def test_the_backend_changes_between_forward_and_backward(inside: bool) -> None:
    torch.manual_seed(2)
    first: nn.Module = nn.Conv2d(6, 16, 3)
    model = nn.Sequential(
        nn.Sequential(
            OtherBackend(first) if inside else first,
            nn.Dropout(0.5),
            nn.Conv2d(16, 8, 3),
            nn.Sigmoid(),
        )
    )
    planned = copy.deepcopy(model)
    give_up("0")(planned)
    seen: list[list[Any]] = []
    x = torch.randn(3, 6, 17, 17, generator=torch.Generator().manual_seed(1))
    for net in (model, planned):
        here: list[Any] = []
        torch.manual_seed(3)
        for _ in range(2):
            net.zero_grad()
            with torch.backends.mkldnn.flags(enabled=inside):  # type: ignore[no-untyped-call]
                out = net(x)
            weighted_sum(out).backward()
            here += copied([out, *(p.grad for p in net.parameters())])
        seen.append(here)
    assert_same(*seen)


def test_backward_in_another_thread() -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        for _ in range(2):
            net.zero_grad()
            loss = weighted_sum(net(batch(4)))
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        seen.append(copied([p.grad for p in net.parameters()]))
    assert_same(*seen)


def test_zeros_have_signs() -> None:
    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    give_up("a", "b")(planned)
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here: list[Any] = []
        for alpha in (0.0, -0.0, 0.0, -0.0):
            net.b.alpha = alpha
            here += step(net, batch(4))
        seen.append(here)
    assert_same(*seen)


def test_a_unit_called_by_itself() -> None:
    """Segments over several units wait for an end that may never come: they do not open."""
    from dataclasses import replace

    from planner.applier.apply import apply, manual_plan
    from planner.documents import Boundary, Segment

    torch.manual_seed(2)
    model = Net()
    planned = copy.deepcopy(model)
    plan = manual_plan(planned, ["a"])
    span = Segment(Boundary("a", 0, "enter"), Boundary("b", 0, "exit"))
    handle = apply(planned, replace(plan, segments=(span,)))
    seen: list[list[Any]] = []
    for net in (model, planned):
        torch.manual_seed(4)
        here = step(net.a, batch(4))
        assert_clean()
        here += step(net, batch(4)) + step(net.b, batch(4)) + step(net, batch(4))
        seen.append(here)
    assert_same(*seen)
    assert handle.replayed_ops > 0
