"""Recurrent layers and cells unrolled over time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .parts import mean_square, one_tensor
from .situation import Setup, situation


class GatedReader(nn.Module):
    """A two-layer GRU with dropout and two small linear layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 16, num_layers=2, batch_first=True, dropout=0.2)
        self.middle = nn.Linear(16, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sequence, final = self.gru(x)
        return self.last(self.middle(sequence)), final


@situation("facebookresearch/fairscale#766")
def gru_and_small_linears() -> Setup:
    """A lone linear layer has nothing to give up; the GRU has, and returns two results."""
    return Setup(GatedReader(), one_tensor(3, 9, 6), mean_square)


class Heaviside(torch.autograd.Function):
    """A step forward with a smooth stand-in for its derivative."""

    @staticmethod
    def forward(ctx: Any, potential: Tensor) -> Tensor:
        ctx.save_for_backward(potential)
        return (potential > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (potential,) = ctx.saved_tensors
        return grad / (5 * potential.abs() + 1).square()


class Membrane(NamedTuple):
    """State of a spiking neuron between two time steps."""

    potential: Tensor
    current: Tensor


class SpikingCell(nn.Module):
    """Leaky integrate-and-fire with recurrent input."""

    def __init__(self, inputs: int, neurons: int) -> None:
        super().__init__()
        self.feed = nn.Linear(inputs, neurons)
        self.recur = nn.Linear(neurons, neurons, bias=False)

    def forward(self, x: Tensor, spikes: Tensor, state: Membrane) -> tuple[Tensor, Membrane]:
        current = self.feed(x) + self.recur(spikes) + 0.7 * state.current
        potential = current + 0.9 * state.potential * (1 - spikes)
        return Heaviside.apply(potential - 1.0), Membrane(potential, current)


class SpikingNet(nn.Module):
    """One cell called once per time step; its readouts add up."""

    def __init__(self, neurons: int = 10) -> None:
        super().__init__()
        self.cell = SpikingCell(5, neurons)
        self.readout = nn.Linear(neurons, 3)

    def forward(self, frames: Tensor) -> Tensor:
        silent = frames.new_zeros(frames.shape[1], self.cell.recur.in_features)
        spikes, state = silent, Membrane(silent, silent)
        total = torch.zeros(())
        for frame in frames:
            spikes, state = self.cell(frame, spikes, state)
            total = total + self.readout(spikes)
        return total


@situation("norse/norse#39")
def cell_with_named_tuple_state() -> Setup:
    """The same cell runs twelve times and passes its state on as a named tuple."""
    return Setup(SpikingNet(), one_tensor(12, 4, 5))
