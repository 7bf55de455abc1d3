"""Odd things that a forward may do to its tensors; each trains as without a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_runs import assert_same, give_up, train
from torch import Tensor, nn
from torch.nn import functional as F

Body = Callable[["Part", Tensor], Tensor]


class Part(nn.Module):
    """Two layers, a few buffers, and a body."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.first, self.second, self.body = nn.Linear(6, 6), nn.Linear(6, 6), body
        self.register_buffer("scale", torch.ones(6))
        self.register_buffer("cache", torch.zeros(8, 6))
        self.calls = 0
        self.previous: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.body(self, x)


def foreach(part: Part, x: Tensor) -> Tensor:
    pair = torch._foreach_mul([part.first(x), part.second(x).sin()], 2.0)
    torch._foreach_add_(pair, 1.0)
    return pair[0].exp() * pair[1].tanh()


def out_argument(part: Part, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = torch.empty(len(x), 6)
        torch.mul(x, 2.0, out=out)
    return (part.first(x) * out).sin().exp()


def cache_written(part: Part, x: Tensor) -> Tensor:
    with torch.no_grad():
        part.cache[: len(x)] = part.first(x)
    return (part.second(x) * part.cache[: len(x)].clone()).sin().tanh()


def buffer_between_reads(part: Part, x: Tensor) -> Tensor:
    y = (part.second(x) * part.scale.clone()).sin()
    part.scale.mul_(0.9)
    return (y * part.scale.clone()).tanh().exp()


def data_replaced(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    z = y.detach().clone()
    z.data = torch.full_like(y, 0.5)
    return (y * z).sin().tanh()


def data_written(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    z = y.detach() * 1
    z.data.mul_(2)
    return (y * z).sin().tanh()


def resized(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    z = torch.empty(0)
    return (y * z.resize_(y.shape).copy_(y.detach())).sin().tanh()


def rewired(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    return (y * torch.empty(0).set_(y.detach().exp())).sin().tanh()


def strided_views(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).exp() * 1
    y.t()[1:3].mul_(2.0)
    y.diagonal().add_(1.0)
    z = y.as_strided((len(x), 3), (6, 2), 1)
    return torch.cat(((z.sin() * z).tanh(), y[:, :3].cos()), 1)


def through_numpy(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    return (y * torch.from_numpy(y.detach().numpy() * 2)).sin().exp() * copy.deepcopy(y.detach())


def same_random_state_twice(part: Part, x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = F.dropout(part.first(x), 0.5)
    torch.set_rng_state(state)
    return (first * F.dropout(part.second(x), 0.5)).sin().exp()


def forked_random_state(part: Part, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(part.calls)
        y = F.dropout(part.first(x), 0.5)
    return (y * torch.rand_like(y)).sin().exp()


def generators(part: Part, x: Tensor) -> Tensor:
    own = torch.Generator().manual_seed(part.calls)
    noise = torch.rand(6, generator=own)
    return (part.first(x) * noise).sin() * torch.randn(6, generator=own).exp()


def random_fills(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    noise = torch.empty_like(y).normal_()
    other = torch.empty_like(y).uniform_(0, 1).exponential_()
    return (y * noise + other * y * torch.normal(y.detach(), 1.0)).sin().exp()


def negative_bit(part: Part, x: Tensor) -> Tensor:
    y = torch.view_as_complex(part.first(x).view(-1, 3, 2)).conj().imag
    z = y * y.sin()
    return torch.cat((z, z.exp()), 1)


def conjugate(part: Part, x: Tensor) -> Tensor:
    y = torch.view_as_complex(part.first(x).view(-1, 3, 2))
    z = (y.conj() * y.exp()).conj()
    return torch.view_as_real(z.resolve_conj() * z.abs()).flatten(1).tanh()


def split_in_place(part: Part, x: Tensor) -> Tensor:
    left, right = part.first(x).split(3, 1)
    left = (left * 1).add_(right)
    return torch.cat([left.sin(), right.exp() * left], 1)


def masked_writes(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).exp().clone()
    y[y > 1.0] = 0.5
    y[torch.tensor([0, 1])] += 1
    return (y * y.sin()).tanh()


def sparse(part: Part, x: Tensor) -> Tensor:
    where = torch.tensor([[0, 1, 2], [1, 2, 0]])
    matrix = torch.sparse_coo_tensor(where, part.scale[:3].clone(), (6, 6))
    rows = (part.first.weight.detach() > 0).float().to_sparse_csr()
    y = part.first(x).t()
    return (torch.sparse.mm(matrix, y).sin() * (rows @ y).exp()).t()


def jagged(part: Part, x: Tensor) -> Tensor:
    rows = [part.first(x), part.second(x)[:2]]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    return (nested.sin() * nested).values().exp()


class Named(torch.Tensor):
    """A subclass without a dispatch of its own."""


def subclass(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).as_subclass(Named)
    return (y.sin() * part.second(x).exp()).as_subclass(torch.Tensor).tanh()


class Product(torch.autograd.Function):
    """Saves inputs and an output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        z = x * y
        ctx.save_for_backward(x, y, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y, z = ctx.saved_tensors
        return grad * y + z, grad * x - z


class Dirty(torch.autograd.Function):
    """Works in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2).sin_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]


def functions(part: Part, x: Tensor) -> Tensor:
    y = Product.apply(part.first(x).sin(), part.second(x).exp())
    return Dirty.apply(y * 1.0).exp() * part.second(x)


def transforms(part: Part, x: Tensor) -> Tensor:
    y = torch.func.vmap(lambda row: row.sin().exp())(part.first(x))
    slope = torch.func.jacrev(lambda t: t.sin().sum())(x.detach())
    value, tangent = torch.func.jvp(torch.sin, (x,), (part.second(x),))
    return y * slope + value * tangent.exp()


@torch.jit.script
def scripted(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sin() * x.exp()


def scripted_function(part: Part, x: Tensor) -> Tensor:
    return scripted(part.first(x), part.second(x)).tanh()


def tensor_hooks(part: Part, x: Tensor) -> Tensor:
    y = part.first(x)
    if y.requires_grad:
        y.register_hook(lambda grad: grad * 1.5)
        y.retain_grad()
    z = y.sin()
    z.register_hook(lambda grad: grad.clamp(-1, 1))
    return z.exp()


def state_from_the_step_before(part: Part, x: Tensor) -> Tensor:
    y = part.first(x).sin()
    before = part.previous
    part.previous = y.detach()
    return (y * before).exp() if before is not None and before.shape == y.shape else y.exp()


def empty_tensors(part: Part, x: Tensor) -> Tensor:
    return part.first(x[:0]).sin().exp().sum() + part.first(x).tanh()


def long_loop(part: Part, x: Tensor) -> Tensor:
    for _ in range(30):
        x = (part.first(x) * 0.5).sin()
    return x


BODIES: list[Body] = [
    foreach, out_argument, cache_written, buffer_between_reads, data_replaced, data_written,
    resized, rewired, strided_views, through_numpy, same_random_state_twice, forked_random_state,
    generators, random_fills, negative_bit, conjugate, split_in_place, masked_writes, sparse,
    subclass, functions, transforms, scripted_function, tensor_hooks, state_from_the_step_before,
    empty_tensors, long_loop,
]  # fmt: skip


def inputs(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, 6, generator=torch.Generator().manual_seed(batch)).requires_grad_(),)


pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


def compare(model: nn.Module, *units: str) -> None:
    batches = (3, 3, 4, 3)
    plain, _ = train(model, inputs, batches)
    planned, handle = train(model, inputs, batches, give_up(*units))
    assert_same(plain, planned)
    assert handle is not None
    assert handle.replayed_ops > 0


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_forward(body: Body) -> None:
    torch.manual_seed(0)
    compare(nn.Sequential(Part(body), Part(body)), "0", "1")


def test_jagged_tensors() -> None:
    torch.manual_seed(0)
    compare(nn.Sequential(Part(jagged)), "0")


def test_tied_weights_across_units() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Part(scripted_function), Part(foreach))
    model[1].first.weight = model[0].first.weight
    model[1].second = model[0].second
    compare(model, "0", "1")
