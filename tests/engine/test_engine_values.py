"""Which value is it? Memory that changes hands, meaning or content between ops and between steps.

Each body runs several steps: the first is recorded, later ones are followed or differ from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import pytest
import torch
from engine_runs import assert_same, copied, give_up, train, weighted_sum
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import planner
from planner.replay.surroundings import choices

WIDTH = 6


class Part(nn.Module):
    """Two layers around a body; `step` counts its calls."""

    def __init__(self, body: Callable[[Part, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Buffer(torch.full((WIDTH,), 1.5))
        self.step = 0

    @property
    def odd(self) -> bool:
        return self.step % 2 == 1

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(self, x)
        self.step += 1
        return out


def net(body: Callable[[Part, Tensor], Tensor]) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(Part(body), Part(body))


def inputs(batch: int) -> tuple[Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return (torch.randn(batch, WIDTH, generator=generator).requires_grad_(),)


pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


BODIES: dict[str, Callable[[Part, Tensor], Tensor]] = {}


def body(function: Callable[[Part, Tensor], Tensor]) -> Callable[[Part, Tensor], Tensor]:
    BODIES[function.__name__] = function
    return function


@body
def blank_memory_filled_unseen_then_written_in_place(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).sin()
    e = torch.empty(x.shape)
    e.numpy()[...] = y.detach().numpy() * 2
    e.mul_(1.5)
    return (part.second(x) * e).sin() * y


@body
def blank_memory_filled_by_halves(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).sin()
    e = torch.empty(x.shape)
    e.numpy()[:2] = 2.0
    e[2:] = y[2:].detach()
    return (part.second(x) * e).sin() * y


@body
def a_quasirandom_draw(part: Part, x: Tensor) -> Tensor:
    points = torch.quasirandom.SobolEngine(WIDTH, scramble=True).draw(len(x))
    return (part.second(part.first(x)) * points).sin().exp()


@body
def written_unseen_then_seen(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).sin()
    e = torch.zeros(x.shape)
    e.numpy()[...] = y.detach().numpy() * 2
    e.mul_(1.5)
    return (part.second(x) * e).sin() * y


@body
def transposed_in_place(part: Part, x: Tensor) -> Tensor:
    y = part.first(x[:WIDTH]).exp() * 1
    y.t_()
    z = y.t()
    return (z @ part.second.weight).sin() * z.tanh() * x[:WIDTH]


@body
def conjugated_in_odd_steps(part: Part, x: Tensor) -> Tensor:
    c = torch.complex(part.first(x), part.second(x)).sin()
    d = c.conj()
    e = (d if part.odd else c) * torch.complex(x.detach(), x.detach().sin())
    return e.real.sin() * e.imag.exp()


@body
def read_as_integers_in_odd_steps(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).exp().detach() * 1
    a = y.view(torch.int32)
    z = (a if part.odd else y) + 1
    return (part.second(x) * (z.float() * 1e-9 + 1)).sin().exp()


@body
def data_replaced_after_it_was_read(part: Part, x: Tensor) -> Tensor:
    y = (part.first(x) * part.scale).sin().exp().tanh()
    if part.step >= 2:
        for tensor in (part.first.weight, part.first.bias, part.scale):
            tensor.data = tensor.data * 0.9
    return y


@body
def data_clamped_after_it_was_read(part: Part, x: Tensor) -> Tensor:
    y = (part.first(x) * part.scale).sin()
    part.scale.data.clamp_(max=1.2 - part.step * 0.1)
    return (y * part.scale).exp()


@body
def lists_of_other_numbers(part: Part, x: Tensor) -> Tensor:
    whole = [torch.arange(WIDTH), torch.arange(WIDTH)]
    a, b = torch._foreach_mul(whole, [2, 2] if part.odd else [2.0, 2.0])
    ones = [torch.ones(WIDTH), torch.ones(WIDTH)]
    c, _ = torch._foreach_mul(ones, [0.0, 0.0] if part.odd else [-0.0, -0.0])
    y = part.first(x) * (a / 4)
    return y.sin() * (b / 4).exp() * torch.atan2(c, -torch.ones(WIDTH)) * part.second(y).sin()


@body
def foreach_into_memory_from_outside(part: Part, x: Tensor) -> Tensor:
    y = (part.first(x) * part.scale.clone()).sin()
    torch._foreach_add_([part.scale], 0.25)
    return (y * part.scale.clone()).exp()


@body
def factories_under_another_default_dtype(part: Part, x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        ramp = torch.arange(WIDTH) / 3
        return (part.first(x) * ramp).sin().to(x.dtype) * part.second(x).exp()
    finally:
        torch.set_default_dtype(torch.float32)


class Silent(torch.autograd.Function):
    """Writes into its argument out of sight."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        z.numpy()[...] *= 0.5
        return z.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


@body
def a_difference_right_after_an_unseen_write(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).sin()
    z = y.detach().exp()
    Silent.apply(z)
    if part.odd:
        return (y * z).sin() * z.cos()
    return (z.tanh() * y).sin()


@body
def an_unseen_write_in_odd_steps(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    if part.odd:
        y.detach().numpy()[...] *= 2.0
        return (y.tanh() * y).exp().clamp(max=3)
    return y.sin() * x


@body
def nested_tensors(part: Part, x: Tensor) -> Tensor:
    nested = torch.nested.as_nested_tensor([part.first(x), part.second(x)[:2]])
    return torch.nested.to_padded_tensor(nested, 0.0).sin().sum(0) * part.first(x).exp()


@body
def statistics_updated_without_a_version(part: Part, x: Tensor) -> Tensor:
    y = part.first(x) * part.scale.sin()
    args = (part.first.bias, part.scale, torch.ones(WIDTH), True, 0.5, 1e-5)
    z = torch.ops.aten._native_batch_norm_legit(y, None, *args)[0]
    return (z * (part.scale + 1)).sin() * part.second(x).exp()


@body
def an_observer_of_ranges(part: Part, x: Tensor) -> Tensor:
    on, low, high = torch.ones(1, dtype=torch.long), part.scale[:1], part.scale[1:2]
    scale, zero = torch.ones(1), torch.zeros(1, dtype=torch.int)
    ranges = (on, on, low, high, scale, zero, 0.5, 0, 255, -1, False, False)
    y = torch.ops.aten._fused_moving_avg_obs_fq_helper(part.first(x).sin(), *ranges)[0]
    return (y * y * high).sin() * part.second(x).exp()


@body
def noise_written_beside_a_result(part: Part, x: Tensor) -> Tensor:
    return nn.functional.rrelu(part.first(x), training=True).sin() * part.second(x).exp()


@body
def a_copy_that_does_not_wait(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).to("cpu", torch.float64, non_blocking=True)
    z = torch.empty_like(y).copy_(y.sin(), True)
    return z.exp().float() * part.second(x).exp()


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("units", [("0", "1"), ("",)], ids=["parts", "whole"])
def test_a_body(name: str, units: tuple[str, ...]) -> None:
    model = net(BODIES[name])
    batches = [WIDTH] * 6
    plain, _ = train(model, inputs, batches)
    planned, handle = train(model, inputs, batches, give_up(*units))
    assert_same(plain, planned)
    assert handle is not None and handle.replayed_ops


def default_dtype_in_backward(out: Tensor) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        weighted_sum(out).backward()
    finally:
        torch.set_default_dtype(torch.float32)


class Scaling(TorchDispatchMode):
    """Changes what sines are."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 1.5 if func is torch.ops.aten.sin.default else out


@contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("forward", [nothing, Scaling])
@pytest.mark.parametrize("backward", [nothing, Scaling])
def test_a_mode_that_changes_results(forward: Any, backward: Any) -> None:
    seen = []
    for prepare in (lambda model: None, give_up("0", "1")):
        model = net(lambda part, x: part.second(part.first(x).sin()).sin().exp())
        prepare(model)
        here: list[Any] = []
        for _ in range(3):
            (x,) = inputs(4)
            with forward():
                out = model(x)
            with backward():
                weighted_sum(out).backward()
            here += copied([out, x.grad, *(p.grad for p in model.parameters())])
        seen.append(here)
    assert_same(*seen)


def test_another_default_dtype_in_backward() -> None:
    def factories(part: Part, x: Tensor) -> Tensor:
        return (part.first(x) * (torch.arange(WIDTH) / 3)).sin() * part.second(x).exp()

    seen = []
    for prepare in (lambda model: None, give_up("0", "1")):
        model = net(factories)
        prepare(model)
        (x,) = inputs(4)
        default_dtype_in_backward(model(x))
        seen.append(copied([x.grad, *(p.grad for p in model.parameters())]))
    assert_same(*seen)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch.backends.cuda.matmul.fp32_precision", "tf32"),
        ("torch.backends.cudnn.conv.fp32_precision", "ieee"),
        ("torch.backends.mkldnn.matmul.fp32_precision", "bf16"),
        ("torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction", (False, False)),
        ("torch.backends.cuda.matmul.allow_fp16_accumulation", True),
    ],
)
def test_a_replay_is_as_precise_as_the_forward(name: str, value: Any) -> None:
    """The settings that kernels read are those of the forward, and those of backward come back."""
    path, setting = name.rsplit(".", 1)
    place = attrgetter(path.removeprefix("torch."))(torch)
    before, seen = choices(), []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten.sin.default:
                seen.append(choices())
            return func(*args, **(kwargs or {}))

    model = net(lambda part, x: part.second(part.first(x).sin()).exp())
    give_up("0", "1")(model)
    old = getattr(place, setting)
    try:
        with Look():
            setattr(place, setting, value)
            out = model(inputs(4)[0])
            setattr(place, setting, old)
            between = choices()
            weighted_sum(out).backward()
            assert choices() == between
    finally:
        setattr(place, setting, old)
    forward, replayed = seen[:2], seen[2:]
    assert before != forward[0] == forward[1] and replayed and set(replayed) == {forward[0]}


def test_a_batch_of_gradients_through_dropout() -> None:
    seen = []
    for prepare in (lambda model: None, give_up("0", "1")):
        model = net(lambda part, x: nn.functional.dropout(part.first(x).sin(), 0.5).exp())
        prepare(model)
        torch.manual_seed(3)
        (x,) = inputs(4)
        out = model(x)
        grads = torch.stack([torch.ones_like(out), torch.full_like(out, 2.0)])
        tensors = [x, *(part.first.weight for part in model)]
        seen.append(copied(torch.autograd.grad(out, tensors, grads, is_grads_batched=True)))
    assert_same(*seen)


class SpoilsWhatItSaved(torch.autograd.Function):
    """Its backward writes into its saved tensor, which another node saved too."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        y.mul_(3)
        return grad * y


def test_a_backward_that_writes_into_a_saved_tensor_is_refused_as_plain_does() -> None:
    def spoiling(part: Part, x: Tensor) -> Tensor:
        y = part.first(x).sin().exp()
        return SpoilsWhatItSaved.apply(y) * part.second(x)

    for prepare in (lambda model: None, give_up("0")):
        model = net(spoiling)
        prepare(model)
        out = model(*inputs(4))
        with pytest.raises((RuntimeError, planner.PlannerError), match="modified"):
            weighted_sum(out).backward()
