"""Does what holds on the CPU hold on a GPU? One command, under 8 minutes, one result file.

    python scripts/gpu_check.py [-o FILE]

First the sweep of scripts/ckpt_mem.py beside the published peaks and a plan for 300 MB; then GPT-2
(float32) and Llama (bfloat16, where attention has other kernels) at several budgets: peak predicted
and measured, what the allocator reserved, step time plain, with every block under torch's
checkpoint, and under the plan, and whether gradients are equal. Where there is no accelerator it
says so and exits 0. Parts that no longer fit the time limit are named in the file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bench_common
import ckpt_mem
import torch
from torch import nn

import planner
from planner.applier.apply import manual_plan
from planner.estimate.cost_model import device_name
from planner.memory.allocator import blocks_of
from planner.memory.allocator_settings import in_force
from planner.profiler.timing import time_run
from planner.training_step.same_state import from_same_state
from planner.training_step.step import Step, make_step
from planner.units import MIB
from planner.verifier.measure import (
    measure_both,
    run_for_results,
    same_results,
)

PUBLISHED = {"device": "RTX A6000", "torch": "2.5.1", "plain": 420.3, "4 segments": 276.4}
"""Peaks in MB (1024**2 bytes) of the sweep's model, for the same sizes and library call."""

BUDGETS = ("85%", "70%", "50%", "lowest")
REPEATS = 5
FULL = bench_common.Size(layers=12, width=768, heads=12, batch=8, length=1024, vocabulary=50257)
SMALL = bench_common.Size(layers=2, width=32, heads=2, batch=2, length=32, vocabulary=100)


class Clock:
    """Runs parts while there is time, and notes what was left out or failed."""

    def __init__(self, limit_s: float) -> None:
        self.end = time.monotonic() + limit_s
        self.missing: dict[str, str] = {}

    def part(self, name: str, run: Callable[[], Any]) -> Any:
        """Return what a part found, or None."""
        if time.monotonic() > self.end:
            self.missing[name] = "no time left"
            return None
        try:
            found = run()
        except Exception as error:  # one part must not take the others with it
            self.missing[name] = f"{type(error).__name__}: {error}"
            print(name, "failed:", self.missing[name], flush=True)
            return None
        print(name, found, flush=True)
        return found


def segment_sweep(setting: ckpt_mem.Setting, clock: Clock) -> dict[str, Any]:
    """Return the peaks of the sweep in MiB, and those of plans for 300 MB and the sweep's best."""
    found: dict[str, Any] = {"published": PUBLISHED, "measured": {}}
    segments = [count for count in (2, 4, 8, 16) if count <= setting.pairs]
    rows = clock.part("sweep", lambda: list(ckpt_mem.sweep(setting, segments))) or []
    found["measured"] = {row.label: round(row.peak_bytes / MIB, 1) for row in rows}
    plain_bytes = max((row.peak_bytes for row in rows), default=0)
    budget = 300 * MIB if setting.width == 1024 else plain_bytes * 8 // 10
    found["plan"] = clock.part("plan for the sweep's model", lambda: _sweep_plan(setting, budget))
    return found


def _sweep_plan(setting: ckpt_mem.Setting, budget_bytes: int) -> dict[str, Any]:
    model, x = setting.model(), setting.input()
    plan = _plan_or_lowest(model, f"{budget_bytes}B", inputs=(x,), loss_fn=torch.sum)
    found = planner.verify(model, plan, inputs=(x,), loss_fn=torch.sum)
    return _facts(plan, found)


def _plan_or_lowest(model: nn.Module, budget: str, **known: Any) -> planner.Plan:
    """A plan for the budget, or, where libraries keep too much for themselves, for the least."""
    try:
        return planner.plan(model, budget_mb=budget, **known)
    except planner.InfeasibleBudgetError as error:
        return planner.plan(model, budget_mb=f"{error.min_peak_bytes}B", **known)


def _facts(plan: planner.Plan, found: planner.Verification) -> dict[str, Any]:
    return {
        "budget_mib": _mib(plan.budget_bytes),
        "predicted_mib": _mib(plan.predicted_peak_bytes),
        "measured_mib": _mib(found.measured_peak_bytes),
        "within_budget": found.measured_peak_bytes <= plan.budget_bytes,
        "gradients_equal": found.gradients_equal,
        "reserved_mib": _mib(found.reserved_bytes),
        "segments": len(plan.segments),
        "left_out": {e.unit: e.reason for e in plan.exclusions},
        "notes": list(plan.notes),
        "replayed_ops": found.replayed_ops,
        "predicted_overhead": plan.predicted_overhead_ratio,
    }


def transformer(
    name: str, dtype: torch.dtype, size: bench_common.Size, device: str, clock: Clock
) -> dict[str, Any]:
    """Return what one model takes plain, checkpointed by hand, and under plans."""
    model, inputs, blocks = bench_common.build(name, size)
    model = model.to(device, dtype)
    inputs = {key: value.to(device) for key, value in inputs.items()}
    step = make_step(model, inputs=inputs)
    found: dict[str, Any] = {"size": repr(size), "dtype": str(dtype)}
    found["plain"] = clock.part(f"{name} plain", lambda: _measured(step, model, None))
    every = [f"{blocks}.{index}" for index in range(size.layers)]
    profile = clock.part(f"{name} profile", lambda: Profiled(planner.profile(model, inputs=inputs)))
    by_hand = manual_plan(model, every, runtime="checkpoint")
    found["every block under checkpoint"] = clock.part(
        f"{name} every block", lambda: _measured(step, model, by_hand)
    )
    for budget in BUDGETS:
        found[budget] = clock.part(
            f"{name} {budget}", lambda budget=budget: _planned(model, inputs, step, profile, budget)
        )
    return found


class Profiled:
    """Holds a profile and prints as little of it as a progress line has room for."""

    def __init__(self, profile: planner.Profile) -> None:
        self.profile = profile

    def __repr__(self) -> str:
        peak = round(self.profile.plain_peak_bytes / MIB, 1)
        return f"{len(self.profile.ops)} ops, plain peak {peak} MiB"


def _planned(
    model: nn.Module, inputs: Any, step: Step, profile: Profiled | None, budget: str
) -> dict[str, Any]:
    size = "1%" if budget == "lowest" else budget
    known = profile.profile if profile else None
    plan = _plan_or_lowest(model, size, inputs=inputs, profile=known)
    found = planner.verify(model, plan, inputs=inputs, repeats=1)
    facts = {**_facts(plan, found), **_measured(step, model, plan)}
    if not found.gradients_equal:  # kernels that add in any order differ from run to run
        runs = [run_for_results(step) for _ in range(2)]
        facts["plain_step_repeats_itself"] = all(same_results(*runs))
    return facts


def _measured(step: Step, model: nn.Module, plan: planner.Plan | None) -> dict[str, Any]:
    """Peak and least time of a step, plain or planned, after one to warm up."""
    handle = None if plan is None else planner.apply(model, plan)
    device = next(model.parameters()).device
    try:
        memory = measure_both(step)
        times = []
        for _ in range(REPEATS):
            with from_same_state(step):
                times.append(time_run(step.run, device))
    finally:
        if handle is not None:
            handle.remove()
    return {
        "peak_mib": _mib(max(found.peak_bytes for found in memory)),
        "reserved_mib": _mib(memory[-1].reserved_bytes),
        "step_ms": round(min(times) / 1e6, 2),
    }


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / MIB, 3)


def _allocator(device: str) -> dict[str, Any]:
    """By what rule the allocator counts, and its settings."""
    torch.empty(1, device=device)
    return {"counts_in": repr(blocks_of(torch.device(device))), "settings": in_force()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts and write the result file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--limit", type=float, default=400, help="seconds after which to stop")
    parser.add_argument("--rehearse", action="store_true", help="small models, also on the CPU")
    args = parser.parse_args(argv)
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None and not args.rehearse:
        print("no accelerator here: nothing to check (--rehearse runs small models on the CPU)")
        return 0
    device, size = found.type if found else "cpu", SMALL if args.rehearse else FULL
    setting = ckpt_mem.Setting(device, *((4, 32, 256) if args.rehearse else (16, 1024, 4096)))
    clock = Clock(args.limit)
    command = "python scripts/gpu_check.py" + " --rehearse" * args.rehearse
    entries: dict[str, Any] = bench_common.facts(command)
    if device != "cpu":
        entries["hardware"]["accelerator"] = device_name(torch.device(device))
        entries["allocator"] = clock.part("allocator", lambda: _allocator(device))
    entries["ckpt_mem"] = segment_sweep(setting, clock)
    for name, dtype in (("gpt2", torch.float32), ("llama", torch.bfloat16)):
        entries[name] = transformer(name, dtype, size, device, clock)
    entries["missing"] = clock.missing
    bench_common.update_results(args.output, entries)
    print(f"wrote {args.output}")
    return 1 if clock.missing else 0


if __name__ == "__main__":
    sys.exit(main())
