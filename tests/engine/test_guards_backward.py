"""What changes between a forward and its backward is followed, or refused by name."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from changing_net import Net, batch, step
from engine_runs import assert_clean, assert_same, copied, give_up, weighted_sum
from torch import Tensor, nn

import planner

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


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
