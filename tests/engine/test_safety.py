"""Errors, interrupts and threads: nothing is left behind, nothing is disturbed."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from engine_runs import assert_clean, assert_same, copied, give_up, weighted_sum
from failing_net import UNITS, Net, again, batch, pair, step
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from planner.replay.native.build import engine

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")

in_python = pytest.mark.skipif(
    engine().name == "native", reason="breaks functions of the Python path, which the core replaces"
)

ERRORS = [
    RuntimeError("boom"),
    torch.OutOfMemoryError("out of memory"),
    MemoryError(),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("after", [0, 1])
def test_an_error_leaves_nothing_behind(error: BaseException, where: str, after: int) -> None:
    _, planned = pair()
    runs: list[list[Any]] = []
    for net in pair()[0], planned:
        torch.manual_seed(3)
        here: list[Any] = []
        for _ in range(after):
            here += step(net)
        setattr(net.parts[1].trap, f"{where}_error", error)
        try:
            step(net)
        except BaseException as raised:
            assert type(raised) is type(error)
        else:
            pytest.fail("the error was swallowed")
        assert_clean()
        setattr(net.parts[1].trap, f"{where}_error", None)
        torch.manual_seed(4)
        here += step(net) + step(net) + step(net, 3)
        runs.append(here)
    assert_same(*runs)


def test_an_interrupt_whose_traceback_is_kept() -> None:
    """As in a notebook: the frames live on, until the next forward."""
    model, planned = pair()
    kept = []
    planned.parts[1].trap.forward_error = KeyboardInterrupt()
    for _ in range(3):
        try:
            planned(batch())
        except KeyboardInterrupt as error:
            kept.append(error)
    planned.parts[1].trap.forward_error = None
    torch.manual_seed(4)
    expected = step(model)
    torch.manual_seed(4)
    assert_same(expected, step(planned))
    assert_clean()


def test_an_interrupt_of_a_unit_called_by_itself() -> None:
    model, planned = pair()
    part = planned.parts[1]
    part.trap.forward_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        part(batch())
    assert_clean()
    part.trap.forward_error = None
    torch.manual_seed(4)
    expected = step(model.parts[1]) + step(model)
    torch.manual_seed(4)
    assert_same(expected, step(part) + step(planned))


@in_python
@pytest.mark.parametrize("method", ["open", "close"])
@pytest.mark.parametrize("early", [False, True])
def test_an_interrupt_within_our_own_code(
    method: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted opening or closing left goes with the frames of the forward."""
    from planner.replay.tape import Tape

    model, planned = pair()
    plain = getattr(Tape, method)

    def interrupted(tape: Tape, *args: Any) -> Any:
        if not early:
            plain(tape, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tape, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            planned(batch())
    assert_clean()
    torch.manual_seed(4)
    expected = step(model)
    torch.manual_seed(4)
    assert_same(expected, step(planned))
    assert_clean()


def test_an_interrupt_that_the_model_catches() -> None:
    class Catching(nn.Module):
        def __init__(self, inner: Net) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.inner(x)
            except KeyboardInterrupt:
                return x * 2

    model, planned = pair()
    torch.manual_seed(2)
    outer, wrapped = Catching(copy.deepcopy(model)), Catching(copy.deepcopy(model))
    give_up("inner.parts.0", "inner.parts.1", "inner.parts.2")(wrapped)
    runs = []
    for net in (outer, wrapped):
        torch.manual_seed(4)
        here = []
        for error in (None, KeyboardInterrupt(), None, KeyboardInterrupt()):
            net.inner.parts[1].trap.forward_error = error
            net.zero_grad(set_to_none=False)
            x = batch()
            weighted_sum(net(x)).backward()
            here += copied([x.grad])
            assert_clean()
        runs.append(here)
    assert_same(*runs)


@in_python
@pytest.mark.parametrize("error", ERRORS[:4], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("after", [0, 2])
def test_an_error_in_a_replay(
    error: BaseException, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel fails while it is replayed (out of memory, say); the next step works."""
    from planner.replay import generators

    model, planned = pair()
    torch.manual_seed(4)
    expected = step(model)
    for _ in range(after):
        step(planned)
    x = batch()
    planned.zero_grad()
    loss = weighted_sum(planned(x))

    calls = []

    def failing(*args: Any) -> Any:
        calls.append(1)
        raise again(error)

    with monkeypatch.context() as patch:
        patch.setattr(generators.DrawsAgain, "draw", failing)
        with pytest.raises(type(error)):
            loss.backward()
    assert calls
    assert_clean()
    torch.manual_seed(4)
    assert_same(expected, step(planned))


def test_two_models_in_two_threads() -> None:
    """Each thread trains its own planned model; the results are those of one thread."""

    def train(net: nn.Module, seen: list[Any]) -> None:
        for rows in (4, 4, 3, 4, 3, 4):
            seen += step(net, rows)

    def nets() -> list[Net]:
        made = []
        for seed in (1, 2, 3):
            torch.manual_seed(seed)
            net = Net()
            for part in net.parts:
                part.drop.p = 0.0  # one generator serves all threads
            made.append(net)
        return made

    plain: list[list[Any]] = [[] for _ in range(3)]
    for net, seen in zip(nets(), plain, strict=True):
        train(net, seen)
    planned: list[list[Any]] = [[] for _ in range(3)]
    threads = []
    for net, seen in zip(nets(), planned, strict=True):
        give_up(*UNITS)(net)
        threads.append(threading.Thread(target=train, args=(net, seen)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(plain, planned, strict=True):
        assert_same(a, b)


def test_one_model_in_two_threads() -> None:
    """Two threads take gradients of one planned model at the same time."""
    model, planned = pair()
    model.eval(), planned.eval()

    def gradients(net: nn.Module, rows: int, seen: list[Any]) -> None:
        for _ in range(6):
            x = batch(rows)
            seen += copied(torch.autograd.grad(weighted_sum(net(x)), [x, *net.parameters()]))

    runs: list[list[list[Any]]] = []
    for net in (model, planned):
        here: list[list[Any]] = [[], []]
        threads = [threading.Thread(target=gradients, args=(net, 3 + i, here[i])) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runs.append(here)
    for a, b in zip(*runs, strict=True):
        assert_same(a, b)


def test_data_loader_workers() -> None:
    model, planned = pair()
    data = TensorDataset(torch.randn(12, 8, generator=torch.Generator().manual_seed(1)))
    runs = []
    for net in (model, planned):
        torch.manual_seed(4)
        here: list[Any] = []
        for (x,) in DataLoader(data, batch_size=4, num_workers=2, shuffle=True):
            net.zero_grad()
            weighted_sum(net(x)).backward()
            here += copied([p.grad for p in net.parameters()])
        runs.append(here)
    assert_same(*runs)
