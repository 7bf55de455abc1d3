"""How far does torch's `checkpoint_sequential` get, and what does a plan reach instead?

The model is 16 x (Linear(1024, 1024), ReLU); the input, 4096 x 1024, requires a gradient; the loss
is `out.sum()`. First the peak of `checkpoint_sequential(use_reentrant=False)` over 2, 4, 8 and 16
segments, then of our plan for 300 MB and for each of those peaks.

    python scripts/ckpt_mem.py [--device cpu] [--device cuda]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint_sequential
from tqdm import tqdm

import planner
from planner.budget import parse_bytes
from planner.memory.meter import meter_for, step_tensors
from planner.units import MIB


@dataclass(frozen=True, slots=True)
class Setting:
    """One model and input, by size."""

    device: str
    pairs: int
    width: int
    rows: int

    def model(self) -> nn.Sequential:
        """Return pairs x (Linear, ReLU)."""
        torch.manual_seed(0)
        layers = [
            m for _ in range(self.pairs) for m in (nn.Linear(self.width, self.width), nn.ReLU())
        ]
        return nn.Sequential(*layers).to(self.device)

    def input(self) -> Tensor:
        """Return the input, which requires a gradient."""
        torch.manual_seed(1)
        return torch.randn(self.rows, self.width, device=self.device, requires_grad=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step."""

    label: str
    peak_bytes: int
    recomputed_linears: int
    predicted_bytes: int | None = None

    def __str__(self) -> str:
        predicted = "" if self.predicted_bytes is None else f"{self.predicted_bytes / MIB:10.1f}"
        peak = f"{self.peak_bytes / MIB:10.1f}"
        return f"{self.label:<24}{peak}{self.recomputed_linears:>12}{predicted}"


Forward = Callable[[nn.Sequential, Tensor], Tensor]


class LinearCount(TorchDispatchMode):
    """Counts the addmm calls under it: a Linear's forward is one, its backward none."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op and count it."""
        self.calls += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


def measured(
    setting: Setting, label: str, forward: Forward, plan: planner.Plan | None = None
) -> Row:
    """Run one step, with the output alive until its end, and measure it."""
    model, x = setting.model(), setting.input()
    applied = nullcontext() if plan is None else planner.apply(model, plan)
    meter = meter_for(setting.device, step_tensors(model, inputs=(x,)))
    with applied, meter, LinearCount() as linears:
        forward(model, x).sum().backward()  # the output goes once the loss exists
    predicted = None if plan is None else plan.predicted_peak_bytes
    return Row(label, meter.peak_bytes, linears.calls - setting.pairs, predicted)


def plain(model: nn.Sequential, x: Tensor) -> Tensor:
    """Run the model as it is."""
    out: Tensor = model(x)
    return out


def in_segments(count: int) -> Forward:
    """Return a forward under `checkpoint_sequential` with `count` segments."""

    def forward(model: nn.Sequential, x: Tensor) -> Tensor:
        out: Tensor = checkpoint_sequential(model, count, x, use_reentrant=False)
        return out

    return forward


def sweep(setting: Setting, segments: Sequence[int]) -> Iterator[Row]:
    """Yield the plain step, then `checkpoint_sequential` over each number of segments."""
    yield measured(setting, "plain", plain)
    for count in segments:
        yield measured(setting, f"{count} segments", in_segments(count))


def planned(setting: Setting, profile: planner.Profile, budget_bytes: int) -> Row | str:
    """Return what our plan for `budget_bytes` takes, measured as the sweep is."""
    label = f"plan for {budget_bytes / MIB:.1f} MiB"
    inputs = (setting.input(),)
    try:
        plan = planner.plan(
            setting.model(),
            budget_mb=f"{budget_bytes}B",
            inputs=inputs,
            loss_fn=torch.sum,
            profile=profile,
        )
    except planner.InfeasibleBudgetError as error:
        return f"{label}: {error}"
    return measured(setting, label, plain, plan)


def compare(setting: Setting, segments: Sequence[int], budget_bytes: int) -> None:
    """Print the sweep, the sweet spot, and the plans for the budget and each swept peak."""
    print(f"\n{setting.device}: {setting.pairs} x (Linear({setting.width}, {setting.width}), ReLU)")
    print(f"{'':<24}{'peak MiB':>10}{'recomputed':>12}{'predicted':>11}")
    rows = []
    for row in tqdm(sweep(setting, segments), total=1 + len(segments), disable=None, leave=False):
        rows.append(row)
        print(row)
    best = min(rows, key=lambda row: row.peak_bytes)
    print(f"sweet spot: {best.label}, {best.peak_bytes / MIB:.1f} MiB")
    arguments = {"inputs": (setting.input(),), "loss_fn": torch.sum}
    profile = planner.profile(setting.model(), **arguments)
    budgets = dict.fromkeys([budget_bytes, *sorted((r.peak_bytes for r in rows), reverse=True)])
    for budget in tqdm(budgets, disable=None, leave=False):
        print(planned(setting, profile, budget))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison on each device asked for (default: all there are)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", action="append", metavar="KIND", help="cpu, cuda, ...")
    parser.add_argument("--segments", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--budget", default="300MB", help="the plan's budget (300MB)")
    for name, default in (("pairs", 16), ("width", 1024), ("rows", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    args = parser.parse_args(argv)
    found = torch.accelerator.current_accelerator(check_available=True)
    here = ["cpu", *([found.type] if found else [])]
    for device in args.device or here:
        setting = Setting(device, args.pairs, args.width, args.rows)
        compare(setting, args.segments, parse_bytes(args.budget))
    return 0


if __name__ == "__main__":
    sys.exit(main())
