"""Ops outside aten that count how often their kernels run; used by the tests of custom ops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.library import Library, custom_op
from torch.nn import functional as F

runs: Counter[str] = Counter()
"""How often each op's kernel ran."""

LIBRARY = "planner_custom"
_SCRATCH = torch.zeros(2**14)


@custom_op(f"{LIBRARY}::dequantize", mutates_args=())
def dequantize(weight: Tensor, scale: Tensor) -> Tensor:
    """A frozen weight of 8 bits as floats."""
    runs["dequantize"] += 1
    return weight.to(torch.float32) * scale


@custom_op(f"{LIBRARY}::gate", mutates_args=())
def gate(x: Tensor, slope: float) -> Tensor:
    """A fused activation with a backward of its own."""
    runs["gate"] += 1
    return x * torch.sigmoid(slope * x)


@custom_op(f"{LIBRARY}::gate_backward", mutates_args=())
def gate_backward(grad: Tensor, x: Tensor, out: Tensor, slope: float) -> Tensor:
    """Reads what the forward made, so that this stays or is replayed."""
    chance = torch.sigmoid(slope * x)
    return grad * (chance + slope * out * (1 - chance))


def _save_gate(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.slope = inputs
    ctx.save_for_backward(x, output)


def _gate_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return gate_backward(grad.contiguous(), *ctx.saved_tensors, ctx.slope), None


gate.register_fake(lambda x, slope: torch.empty_like(x))
gate_backward.register_fake(lambda grad, x, out, slope: torch.empty_like(x))
gate.register_autograd(_gate_gradient, setup_context=_save_gate)
dequantize.register_fake(lambda weight, scale: torch.empty(weight.shape))

RAW = Library(LIBRARY, "FRAGMENT")
"""Ops that are defined by schema and kernel alone. They scale by what `kernel` says."""


def _define(name: str, kernel: Any, tags: tuple[torch.Tag, ...] = ()) -> None:
    def counted(x: Tensor) -> Tensor:
        runs[name] += 1
        return kernel(x)  # type: ignore[no-any-return]

    def differentiable(x: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(getattr(torch.ops, LIBRARY), name)(x)  # type: ignore[no-any-return]

    RAW.define(f"{name}(Tensor x) -> Tensor", tags=tags)
    RAW.impl(name, counted, "CPU")
    RAW.impl(name, differentiable, "AutogradCPU")
    torch.library.register_fake(f"{LIBRARY}::{name}", torch.empty_like)


def _write_argument(x: Tensor) -> Tensor:
    x.detach().numpy()[...] += np.float32(0.5)
    return x.sin()


def _write_scratch(x: Tensor) -> Tensor:
    _SCRATCH[: x.numel()] = x.detach().reshape(-1)
    return x.cos()


def _draw(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape)


def _draw_for_nothing(x: Tensor) -> Tensor:
    torch.rand(3)
    return x.cos()


_define("scale", lambda x: x * 1.5)
_define("announce", lambda x: x * 1.25)
_define("write_argument", _write_argument)
_define("write_scratch", _write_scratch)
_define("count_up", lambda x: x * (1 + runs["count_up"] * 2.0**-10))
_define("return_argument", lambda x: x)
_define("draw", _draw)
_define("draw_tagged", _draw, (torch.Tag.nondeterministic_seeded,))
_define("draw_for_nothing", _draw_for_nothing)
RAW._register_effectful_op(f"{LIBRARY}::announce", torch._library.effects.EffectType.ORDERED)


def raw(name: str) -> Any:
    """Return one of the ops that are defined by schema and kernel."""
    return getattr(getattr(torch.ops, LIBRARY), name)


class Frozen(nn.Module):
    """A linear layer on a frozen weight of 8 bits, with an adapter that is trained."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (width, width), dtype=torch.int8))
        self.register_buffer("scale", torch.full((width, 1), 0.01 / width**0.5))
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = dequantize(self.weight, self.scale)
        return F.linear(x, weight) + self.up(self.down(x))


class Gated(nn.Module):
    """A feed-forward block around the fused activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(gate(self.up(x), 1.5))


class Raw(nn.Module):
    """A block around an op that no gradient flows through: it makes a factor."""

    def __init__(self, width: int, name: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.op = name

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        factor = raw(self.op)(y.detach().clone())
        return x + self.down(F.dropout(y.tanh() * factor, 0.25))
