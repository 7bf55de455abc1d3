"""The engine where backward runs in a thread of its own: streams, generators, transfers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from planner.replay.recipe import Recipe
from planner.replay.tape import Tape

SIM = torch.device("sim")
Body = Callable[[Tensor], Tensor]


def steps(body: Body, count: int = 3) -> tuple[Recipe, list[tuple[Tensor, Tensor]]]:
    """Run a body as a segment a few times; returns gradients plain and given up."""
    recipe, found = Recipe("body"), []
    for step in range(count):
        gradients = []
        for planned in (False, True):
            torch.manual_seed(step)
            x = torch.randn(4, 6, device=SIM, requires_grad=True)
            tape = Tape(recipe)
            if planned:
                tape.open()
            y = body(x)
            if planned:
                tape.close()
            y.sum().backward()
            assert x.grad is not None
            gradients.append(x.grad.cpu())
        found.append((gradients[0], gradients[1]))
    return recipe, found


def assert_equal(body: Body) -> Recipe:
    recipe, found = steps(body)
    for plain, planned in found:
        assert torch.equal(plain, planned)
    assert recipe.count.ops > 0
    return recipe


def test_backward_runs_in_a_thread_of_its_own() -> None:
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(threading.get_ident())
            return grad

    assert_equal(lambda x: Look.apply(x.sin()).cos().sin())
    assert set(seen) != {threading.get_ident()} and threading.get_ident() not in seen


def test_memory_used_on_another_stream() -> None:
    def body(x: Tensor) -> Tensor:
        x.record_stream(torch.Stream(SIM))
        y = x.sin()
        y.record_stream(torch.Stream(SIM))
        return y.cos().sin()

    assert_equal(body)


def test_what_another_stream_computes_stays() -> None:
    side = torch.Stream(SIM)

    def body(x: Tensor) -> Tensor:
        y = x.sin()
        with side:
            z = y.cos().exp()
        return (y * z).sin().cos()

    recipe = assert_equal(body)
    aside = [str(r.func) for r in recipe.programs[0].records if r.aside]
    assert aside == ["aten.cos.default", "aten.exp.default"]
    replayed = {recipe.programs[0].records[n].func for n in recipe.programs[0].replayed}
    assert torch.ops.aten.exp.default not in replayed


@pytest.mark.parametrize("generator", [None, "own"])
def test_a_device_draws_the_same_again(generator: str | None) -> None:
    own = torch.Generator(SIM)

    def body(x: Tensor) -> Tensor:
        own.manual_seed(int(torch.randint(9, ()).item()))
        drawn = torch.empty_like(x).bernoulli_(0.5, generator=own if generator else None)
        return torch.nn.functional.dropout(x.sin() * drawn, 0.3).exp().sin()

    assert_equal(body)
    host, device = torch.get_rng_state(), torch.get_device_module(SIM).get_rng_state()
    steps(body, 1)
    assert not torch.equal(torch.get_device_module(SIM).get_rng_state(), device)
    assert host.device.type == "cpu"


def test_a_copy_to_the_host_that_did_not_wait() -> None:
    def body(x: Tensor) -> Tensor:
        host = (x * 2).to("cpu", non_blocking=True)
        return host.sin().exp().to(SIM, non_blocking=True).cos()

    records = assert_equal(body).programs[0].records
    waits = [dict(r.again[2])["non_blocking"] for r in records if r.again]
    assert waits == [False]
