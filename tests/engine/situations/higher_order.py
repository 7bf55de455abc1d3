"""Second derivatives, several backward passes and functional transforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from .parts import Batch, Chain, FeedForward, Tower, mean_square, noise, one_tensor
from .situation import Setup, situation


class Critic(Chain):
    """Scores its input with one number a row."""

    def __init__(self, width: int) -> None:
        super().__init__(FeedForward(width) for _ in range(3))
        self.score = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.score(super().forward(x))


def _call_with_slope(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = args[0].clone().requires_grad_()
    score = model(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    return score, slope


def _penalized_score(out: tuple[Tensor, Tensor]) -> Tensor:
    score, slope = out
    return score.mean() + 3 * (slope.norm(dim=-1) - 1).square().mean()


@situation("pytorch/pytorch#33999")
def gradient_penalty() -> Setup:
    """The gradient with respect to the input is part of the loss and is differentiated again."""
    return Setup(Critic(10), one_tensor(6, 10), _penalized_score, call=_call_with_slope)


class TwoHeads(Chain):
    """A trunk with dropout that two heads share."""

    def __init__(self, width: int) -> None:
        super().__init__(FeedForward(width, dropout=0.2) for _ in range(3))
        self.left = nn.Linear(width, 3)
        self.right = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Any:
        trunk = super().forward(x)
        return self.left(trunk), self.right(trunk)


def _backward_per_head(loss: Tensor, out: Any, model: nn.Module) -> None:
    left, right = out
    mean_square(left).backward(retain_graph=True)
    mean_square(right).backward()


@situation("openai/guided-diffusion#144")
def backward_once_per_head() -> Setup:
    """The second pass over a retained graph recomputes again, with the same dropout masks."""
    return Setup(TwoHeads(10), one_tensor(5, 10), backward=_backward_per_head)


def _gradients_per_row(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss_of_row(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, values, (row.unsqueeze(0),)).square().mean()

    return vmap(grad(loss_of_row), in_dims=(None, 0))(values, args[0])


def _normalized_mean(loss: Tensor, out: Any, model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        rows = out[name]
        norms = rows.flatten(start_dim=1).norm(dim=1)
        scale = (1 + norms).reshape(-1, *(1 for _ in parameter.shape))
        parameter.grad = (rows / scale).mean(dim=0)


@situation("pytorch/pytorch#122729", rerun="raises", may_refuse=True, recomputes=False)
def gradients_per_sample() -> Setup:
    """Functional transforms reject saved-tensor hooks, so a segment has to step aside."""
    return Setup(Tower(8, 2), one_tensor(4, 8), call=_gradients_per_row, backward=_normalized_mean)


def _call_with_tangent(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    point, direction = args
    return jvp(model, (point,), (direction,))


def _point_and_direction(index: int) -> Batch:
    return (noise(index, 4, 8), noise(index + 70, 4, 8)), {}


@situation("haidog-yaqub/MeanFlow#4", rerun="raises", may_refuse=True, recomputes=False)
def forward_derivative_in_the_loss() -> Setup:
    """The loss holds the output and its derivative along a direction; backward takes both."""
    return Setup(
        Tower(8, 2),
        _point_and_direction,
        lambda out: mean_square(out[0]) + 0.5 * mean_square(out[1]),
        call=_call_with_tangent,
    )
