"""Memory that no tensor of the model shows counts, by the memory events of torch's profiler.

Scratch memory of convolutions, states of generators, and outputs that go once the loss exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from profiled_peak import bytes_of, profiled_peak
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from zoo import train_once

import planner

pytestmark = pytest.mark.usefixtures("no_warnings")


class Recurrent(nn.Module):
    """One step in time after the other, each with a mask smaller than a generator's state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for now in x:
            h = self.cell(h + now)
        return h


class LanguageModel(nn.Module):
    """Returns its loss and its logits, which are larger than anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1024, 16), nn.Linear(16, 1024)
        layers = (nn.TransformerEncoderLayer(16, 2, 64, 0.0, batch_first=True) for _ in range(2))
        self.blocks = nn.Sequential(*layers)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.blocks(self.embed(ids)))
        return {"loss": cross_entropy(logits.flatten(0, 1), ids.flatten()), "logits": logits}


def volumes() -> tuple[nn.Module, Tensor]:
    blocks = (nn.Sequential(nn.SiLU(), nn.Conv3d(8, 8, 3, padding=1)) for _ in range(3))
    return nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), *blocks), torch.randn(1, 3, 4, 16, 16)


def recurrent() -> tuple[nn.Module, Tensor]:
    return Recurrent(), torch.randn(14, 8, 32)


def words() -> tuple[nn.Module, Tensor]:
    return LanguageModel(), torch.randint(1024, (4, 32))


Made = tuple[nn.Module, Tensor]


@pytest.fixture(params=[volumes, recurrent, words], ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    torch.manual_seed(0)
    make: Callable[[], Made] = request.param
    yield make()


def test_peaks_are_the_profilers_and_bits_are_plains(made: Made) -> None:
    model, x = made

    def step(model: nn.Module) -> Tensor:
        out = model(x)
        loss: Tensor = out.pop("loss") if isinstance(out, dict) else out.square().mean()
        del out  # the logits are not needed any more
        loss.backward()
        return loss

    def peak() -> int:
        model.zero_grad()
        return profiled_peak(lambda: step(model), bytes_of((*model.parameters(), x)))

    plain, trained = peak(), train_once(model, step)
    profile = planner.profile(model, step=step)
    assert profile.plain_peak_bytes == plain
    plan = reachable(model, step)
    with planner.apply(model, plan) as handle:
        step(model)
        assert peak() == plan.predicted_peak_bytes == plan.measured_peak_bytes
        assert train_once(model, step).same_as(trained)
        assert handle.replayed_ops > 0
    assert plan.predicted_peak_bytes <= plan.budget_bytes < plain


def reachable(model: nn.Module, step: Callable[[nn.Module], Tensor]) -> planner.Plan:
    """The plan for three quarters of plain or, where none fits, for the smallest peak found."""
    try:
        return planner.plan(model, budget_mb="75%", step=step)
    except planner.InfeasibleBudgetError as error:
        floor_bytes = error.min_peak_bytes
    again = planner.plan(model, budget_mb=f"{floor_bytes}B", step=step)
    assert again.floor_bytes == floor_bytes
    return again
