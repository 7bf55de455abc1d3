"""The first step of planning on the fly: it never needs more than the plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from profiled_peak import bytes_of, profiled_peak
from torch import Tensor, nn

import planner
from planner.online.recompute_all import block_spans

WIDTH, CHANNELS = 64, 8


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def conv() -> nn.Module:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)


def norm() -> nn.Module:
    return nn.BatchNorm2d(CHANNELS)


Parts = tuple[Callable[[], nn.Module], ...]


def blocks(*parts: Callable[[], nn.Module], count: int = 6) -> nn.Module:
    """A stack of small Sequentials."""
    return nn.Sequential(*(nn.Sequential(*(part() for part in parts)) for _ in range(count)))


def row(*parts: Callable[[], nn.Module], count: int = 6) -> nn.Module:
    """The same layers without Sequentials around them."""
    return nn.Sequential(*(part() for _ in range(count) for part in parts))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.relu(self.up(self.norm(x))))
        return y


class Swapped(nn.Module):
    """Its head is registered before the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.act = linear(), linear(), nn.GELU()
        self.blocks = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x)
        return y


class Alternating(nn.Module):
    """Activations and layers in lists of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.acts = nn.ModuleList(nn.Tanh() for _ in range(6))
        self.layers = nn.ModuleList(linear() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for act, layer in zip(self.acts, self.layers, strict=True):
            x = act(layer(x))
        return x


class Recurrent(nn.Module):
    """Takes many small steps, each with dropout: a generator state outweighs a mask."""

    def __init__(self) -> None:
        super().__init__()
        cells = (nn.Sequential(linear(), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4))
        self.cells = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[0])
        for time, now in enumerate(x):
            h = self.cells[time % 4](h + now)
        return h


class Recurrence(nn.Module):
    """A recurrent layer of torch's own."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], dropout: float) -> None:
        super().__init__()
        self.layer = kind(WIDTH, WIDTH, 2, dropout=dropout)
        self.drop, self.head = nn.Dropout(dropout), linear()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.drop(self.layer(x)[0]))
        return y


def encoder() -> nn.Module:
    return nn.Sequential(*(nn.TransformerEncoderLayer(WIDTH, 4, WIDTH) for _ in range(3)))


def frozen() -> nn.Module:
    model = blocks(linear, nn.Tanh)
    for layer in list(model.children())[::2]:
        layer.requires_grad_(False)
    return model


def vector() -> Tensor:
    return torch.randn(512, WIDTH)


def few() -> Tensor:
    return torch.randn(2, 4, WIDTH)


def times() -> Tensor:
    return torch.randn(24, 8, WIDTH)


def image() -> Tensor:
    return torch.randn(4, CHANNELS, 24, 24)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], float]] = {
    "linear, tanh": (lambda: blocks(linear, nn.Tanh), vector, 0.85),
    "linear, tanh, linear": (lambda: blocks(linear, nn.Tanh, linear), vector, 0.7),
    "linear, gelu": (lambda: blocks(linear, nn.GELU), vector, 0.7),
    "conv, norm, relu": (lambda: blocks(conv, norm, nn.ReLU), image, 0.75),
    "row: linear, tanh": (lambda: row(linear, nn.Tanh, count=5), vector, 0.95),
    "row: tanh, linear": (lambda: row(nn.Tanh, linear, count=7), vector, 0.95),
    "row: norm, relu, conv": (lambda: row(norm, nn.ReLU, conv, count=7), image, 0.75),
    "head before blocks": (Swapped, vector, 0.7),
    "acts before layers": (Alternating, vector, 0.9),
    "frozen layers": (frozen, vector, 1.0),
    "one layer": (lambda: nn.Sequential(linear()), vector, 1.0),
    "dropout, a few rows": (lambda: blocks(linear, nn.ReLU, nn.Dropout), few, 1.0),
    "dropout, many rows": (lambda: blocks(linear, nn.ReLU, nn.Dropout), vector, 0.75),
    "recurrent cells": (Recurrent, times, 0.9),
    "lstm": (lambda: Recurrence(nn.LSTM, 0.1), times, 1.0),
    "gru": (lambda: nn.Sequential(Recurrence(nn.GRU, 0.1)), times, 1.0),
    "encoder layers, a few rows": (encoder, few, 1.0),
    "encoder layers": (encoder, times, 0.8),
    "two layers": (lambda: nn.Sequential(linear(), linear()), vector, 1.0),
}


def first_peak(name: str, on_the_fly: bool) -> int:
    """The peak of a model's first step."""
    torch.manual_seed(0)
    make, inputs, _ = MODELS[name]
    model, x = make(), inputs()
    handle = planner.apply(model, budget_mb=1000) if on_the_fly else None
    live = bytes_of((*model.parameters(), *model.buffers(), x))
    peak = profiled_peak(lambda: model(x).sum().backward(), live)
    if handle is not None:
        handle.remove()
    return peak


@pytest.mark.parametrize("name", MODELS)
def test_the_first_step_never_peaks_above_plain(name: str) -> None:
    share = MODELS[name][2]
    assert first_peak(name, on_the_fly=True) <= first_peak(name, on_the_fly=False) * share


def layers(model: nn.Module, span: tuple[str, str]) -> Iterator[nn.Module]:
    """The layers from the first to the last unit of a span, in the order of registration."""
    leaves = {n: m for n, m in model.named_modules() if not any(m.children())}
    names = list(leaves)
    yield from (leaves[n] for n in names[names.index(span[0]) : names.index(span[1]) + 1])


@pytest.mark.parametrize("name", [n for n in MODELS if "," in n and "encoder" not in n])
def test_groups_begin_at_weights_and_are_no_single_layers(name: str) -> None:
    model = MODELS[name][0]()
    spans = list(block_spans(model))
    assert spans
    for span in spans:
        first, *others = layers(model, span)
        assert any(True for _ in first.parameters()) and others
