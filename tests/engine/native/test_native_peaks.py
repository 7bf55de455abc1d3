"""The C++ core and the Python path hold the same memory, as torch's profiler shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from profiled_peak import bytes_of, profiled_peak
from torch import Tensor, nn
from torch.nn import functional as F

import planner
from planner.applier.manual import manual_plan
from planner.replay.held_states import STATE_BYTES
from planner.replay.native import tape
from planner.replay.native.build import engine

pytestmark = pytest.mark.skipif(
    engine().name != "native", reason=f"the native engine does not run: {engine().reason}"
)
LAYERS = 3
DRAWS = 3
"""Random ops of a layer. While it replays one, the core holds a generator state for each; the
Python path holds one for all that draw in turn."""


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.one, self.two, self.dropout = nn.LayerNorm(64), nn.LayerNorm(64), dropout
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 16)).transpose(1, 2)
            for part in self.qkv(self.one(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(-2)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.two(x)))), self.dropout)


def peak(dropout: float, units: list[str]) -> int:
    """The peak of a step, once the engine knows the step."""
    torch.manual_seed(0)
    net, x = nn.Sequential(*(Layer(dropout) for _ in range(LAYERS))), torch.randn(2, 64, 64)

    def step() -> None:
        net.zero_grad()
        net(x).square().mean().backward()

    with planner.apply(net, manual_plan(net, units)):
        for _ in range(8):
            step()
        return profiled_peak(step, bytes_of((*net.parameters(), x)))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("units", [["0", "1", "2"], ["1"]], ids=["everything", "a part"])
def test_the_core_peaks_where_the_python_path_does(
    units: list[str], dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = peak(dropout, units)
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    monkeypatch.setattr(tape, "core", nothing)
    assert 0 <= native - peak(dropout, units) <= DRAWS * STATE_BYTES
