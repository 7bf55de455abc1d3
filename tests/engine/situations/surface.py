"""What a user sees of the model: names, types, attributes, state dicts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .parts import Tower, mean_square, one_tensor
from .situation import Setup, situation


@situation("pytorch/pytorch#77224")
def names_and_state_dict() -> Setup:
    """Wrappers put a prefix in front of every key, and stored weights no longer load."""
    tower = Tower(8, 3)
    before = dict(tower.named_parameters())

    def look(model: nn.Module) -> dict[str, Any]:
        other = Tower(8, 3)
        other.load_state_dict(model.state_dict(), strict=True)
        model.load_state_dict(other.state_dict(), strict=True)
        now = dict(model.named_parameters())
        return {
            "keys": list(model.state_dict()),
            "modules": [name for name, _ in model.named_modules()],
            "types": [type(module).__qualname__ for module in model.modules()],
            "parameters": list(now),
            "same objects": all(now.get(name) is old for name, old in before.items()),
        }

    return Setup(tower, one_tensor(4, 8), after=look)


class TemperedBlock(nn.Module):
    """A block with a method, a class attribute and a settable attribute of its own."""

    heads = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.extra = nn.Linear(width, width)
        self.temperature = 1.0

    def project(self, x: Tensor) -> Tensor:
        """Use the extra layer without going through `forward`."""
        return self.extra(x) / self.temperature

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).tanh() / self.temperature


class CuriousParent(nn.Module):
    """Checks, slices, calls, sets and reads its blocks in every way Python allows."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(TemperedBlock(8) for _ in range(3)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert all(isinstance(block, TemperedBlock) for block in self.blocks)
        assert self.blocks[0].heads == 2
        self.blocks[1].temperature = 2.0
        detour = self.blocks[1:](self.blocks[1].project(x))
        return detour + self.blocks(x), self.blocks[0].linear.weight.square().sum()


def _attributes(model: Any) -> dict[str, Any]:
    block = model.blocks[1]
    return {"seen": block.temperature, "stored": vars(block).get("temperature")}


@situation("pytorch/pytorch#78854")
def attributes_and_methods_of_blocks() -> Setup:
    """A wrapper hides its module's class, methods and attributes from the parent."""
    return Setup(
        CuriousParent(),
        one_tensor(4, 8),
        lambda out: mean_square(out[0]) + 0.01 * out[1],
        after=_attributes,
    )
