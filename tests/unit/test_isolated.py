"""Planning on a copy in a child process: for steps whose state cannot be put back."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import planner
from planner.errors import InfeasibleBudgetError, PlannerError, StepError
from planner.isolation import child_process

on_linux = pytest.mark.skipif(not child_process.may_fork(), reason="no fork is made here")
Step = Callable[[nn.Module], None]


def batches() -> Iterator[Tensor]:
    random = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(128, 16, generator=random)


class Batches(Dataset[Tensor]):
    """Batches that take no memory until they are asked for."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((128, 16), index / 100).sin()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)))


def step_on(draw: Callable[[], Tensor]) -> Step:
    def step(model: nn.Module) -> None:
        model(draw()).square().mean().backward()

    return step


def losses(model: nn.Module, draw: Callable[[], Tensor]) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters())
    found = []
    for _ in range(3):
        loss = model(draw()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@on_linux
@pytest.mark.filterwarnings("ignore:two steps", "ignore:the training step is not the one")
@pytest.mark.parametrize("kind", ["generator", "loader"])
def test_training_goes_on_as_if_nothing_had_been_planned(kind: str) -> None:
    def course(planned: bool) -> list[float]:
        model = net()
        torch.manual_seed(1)
        data = batches() if kind == "generator" else iter(DataLoader(Batches(), None, shuffle=True))

        def draw() -> Tensor:
            return next(data)

        if planned:
            with pytest.raises(StepError, match=r"planner\.isolated"):
                planner.plan(model, budget_mb="85%", step=step_on(draw))
            plan = planner.isolated(planner.plan)(model, budget_mb="85%", step=step_on(draw))
            assert plan.segments and plan.measured_peak_bytes is not None
            planner.apply(model, plan)
        return losses(model, draw)

    assert course(planned=True) == course(planned=False)


@on_linux
def test_files_are_copies(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(range(200)))
    with open(tmp_path / "in", "rb", buffering=0) as given, open(tmp_path / "log", "a") as log:
        log.write("before\n")
        log.flush()

        def draw() -> Tensor:
            print("a step", file=log, flush=True)
            return torch.full((128, 16), given.read(1)[0] / 100)

        assert planner.isolated(planner.profile)(net(), step=step_on(draw)).plain_peak_bytes > 0
        assert given.tell() == 0
    assert (tmp_path / "log").read_text() == "before\n"


@on_linux
def test_what_the_copy_would_share_is_refused() -> None:
    waiting: queue.Queue[Tensor] = queue.Queue()
    waiting.put(torch.ones(4, 16))
    with pytest.raises(StepError, match="queue") as caught:
        planner.isolated(planner.profile)(net(), step=step_on(waiting.get))
    assert "isolated" not in str(caught.value)
    assert waiting.qsize() == 1


@on_linux
def test_errors_and_warnings_come_from_the_child() -> None:
    step = step_on(lambda: torch.ones(128, 16))
    with pytest.raises(InfeasibleBudgetError) as caught:
        planner.isolated(planner.plan)(net(), budget_mb="1%", step=step)
    assert caught.value.min_peak_bytes > caught.value.budget_bytes

    def ends(model: nn.Module) -> None:
        os._exit(3)

    with pytest.raises(PlannerError, match="exit code 3"):
        planner.isolated(planner.profile)(net(), step=ends)

    def warns(path: Any) -> Any:
        import warnings

        warnings.warn("from the child", RuntimeWarning, stacklevel=1)
        return path

    with pytest.warns(RuntimeWarning, match="from the child"):
        assert planner.isolated(warns)("a result") == "a result"
    with pytest.raises(PlannerError, match="cannot be sent back"):
        planner.isolated(batches)()


def test_what_cannot_be_pickled_is_named_where_there_is_no_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_process, "may_fork", lambda: False)
    with pytest.raises(PlannerError, match="cannot be sent to a child") as caught:
        planner.isolated(planner.profile)(net(), step=step_on(lambda: torch.ones(4, 16)))
    assert "planner plan FILE.py:build" in str(caught.value)


@pytest.mark.nightly
def test_a_child_that_is_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "may_fork", lambda: False)
    model, x = net(), torch.randn(128, 16)
    there = planner.isolated(planner.plan)(model, budget_mb="90%", inputs=x)
    assert there.plain_peak_bytes == planner.plan(model, budget_mb="90%", inputs=x).plain_peak_bytes
