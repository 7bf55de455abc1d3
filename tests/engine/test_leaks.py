"""Memory goes when the graph goes: no leak over steps, no reference cycle."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from engine_runs import weighted_sum
from failing_net import UNITS, Net, batch, pair, step

from planner.applier.apply import apply, manual_plan
from planner.memory.meter import meter_for, step_tensors

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


def live_bytes(steps: int, keep: str = "") -> list[int]:
    """Live bytes after each step of a planned model."""
    torch.manual_seed(2)
    net = Net()
    plan = manual_plan(net, UNITS)
    handle = apply(net, plan)
    found = []
    with meter_for("cpu", step_tensors(net)) as meter:
        for number in range(steps):
            if keep == "error" and number % 3 == 1:
                net.parts[2].trap.forward_error = RuntimeError("boom")
            with contextlib.suppress(RuntimeError):
                step(net, 3 + number % 2)
            net.parts[2].trap.forward_error = None
            if keep == "no_backward":
                net(batch())
            net.zero_grad()
            found.append(meter.live_bytes)
    assert handle.replayed_ops > 0
    return found


@pytest.mark.parametrize("keep", ["", "error", "no_backward"])
def test_no_leak(keep: str) -> None:
    """Live bytes after 50 steps are those after 5, without the garbage collector's help."""
    assert_level(50, keep)


@pytest.mark.nightly
def test_no_leak_in_a_long_training() -> None:
    assert_level(2000, "error")


def assert_level(steps: int, keep: str) -> None:
    """Fail unless live bytes stay what they were after 5 steps."""
    gc.collect()
    gc.disable()
    try:
        found = live_bytes(steps, keep)
    finally:
        gc.enable()
    assert found[-1] == found[4] == max(found[4:])


def test_activations_go_with_the_graph() -> None:
    """No reference cycle holds activations: they go when the loss goes."""
    _, planned = pair()
    step(planned)
    gc.collect()
    gc.disable()
    try:
        with meter_for("cpu", step_tensors(planned)) as meter:
            before = meter.live_bytes
            out = planned(batch())
            loss = weighted_sum(out)
            del out, loss
            assert meter.live_bytes == before
            (gradient,) = torch.autograd.grad(
                weighted_sum(planned(x := batch())), x, create_graph=True
            )
            gradient.sum().backward()
            del gradient, x
            planned.zero_grad()
            assert meter.live_bytes <= before
    finally:
        gc.enable()


def test_the_model_and_the_handle_go_without_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        _, planned = pair()
        step(planned)
        weights = [weakref.ref(p) for p in planned.parameters()]
        del planned
        handle_free = [ref() for ref in weights]
        assert handle_free == [None] * len(weights)
    finally:
        gc.enable()
