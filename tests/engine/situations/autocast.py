"""Mixed precision: the cache of casted weights that all blocks share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .parts import Chain, one_tensor
from .situation import Setup, Tolerance, situation


class CommonWeightBlock(nn.Module):
    """Its own linear layer behind one that all its siblings use."""

    def __init__(self, common: nn.Linear) -> None:
        super().__init__()
        self.common = common
        self.own = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.own(self.common(x)).tanh()


class CommonWeightStack(Chain):
    """Uses the common layer without gradients first, so that its cast is cached early."""

    def __init__(self) -> None:
        common = nn.Linear(8, 8)
        super().__init__(CommonWeightBlock(common) for _ in range(3))
        self.common = common

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            level = self.common(x).abs().mean() + 1
        return super().forward(x) * level


def _call_in_bfloat16(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(*args, **kwargs)


@situation("pytorch/pytorch#193338", may_refuse=True, tolerance=Tolerance(1e-3, 1e-4))
def common_weight_under_autocast() -> Setup:
    """Whichever block comes first casts the weight and the others find the cast in the cache; a
    rerun in backward order casts where its forward pass did not (also pytorch/pytorch#141896).
    """
    return Setup(CommonWeightStack(), one_tensor(4, 8), call=_call_in_bfloat16)
