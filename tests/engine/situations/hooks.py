"""Forward hooks: removed before backward, or collecting what passes by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .parts import Tower, mean_square, one_tensor
from .situation import Setup, situation


class SteeredTower(Tower):
    """A tower with a steering vector that only a hook applies."""

    def __init__(self) -> None:
        super().__init__(8, 3)
        self.steering = nn.Parameter(torch.full((32,), 0.3))


def _call_steered(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def steer(module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        return torch.tanh(out * (1 + model.steering))

    handle = model.blocks[1].widen.register_forward_hook(steer)
    try:
        return model(*args, **kwargs)
    finally:
        handle.remove()


@situation("stanfordnlp/pyvene#242", rerun="raises", may_refuse=True)
def hook_removed_after_forward() -> Setup:
    """The hook that changed an inner layer is gone when that layer reruns."""
    return Setup(SteeredTower(), one_tensor(4, 8), call=_call_steered)


class FeatureExtractor(nn.Module):
    """Returns what hooks on two stages collected, and empties the collection."""

    def __init__(self) -> None:
        super().__init__()
        stages = [self._stage(3)] + [self._stage(6) for _ in range(3)]
        self.body = nn.Sequential(*stages)
        self.collected: list[Tensor] = []
        for number in (1, 3):
            self.body[number].register_forward_hook(self._collect)

    @staticmethod
    def _stage(channels: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(channels, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU())

    def _collect(self, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> None:
        self.collected.append(out)

    def forward(self, image: Tensor) -> list[Tensor]:
        self.body(image)
        features, self.collected = self.collected, []
        return features


@situation("huggingface/pytorch-image-models#1595", may_refuse=True)
def features_collected_by_hooks() -> Setup:
    """A hook that fires again in backward leaves stale features for the next step."""
    return Setup(
        FeatureExtractor(),
        one_tensor(2, 3, 8, 8),
        mean_square,
        steps=3,
        state=lambda model: len(model.collected),
    )
