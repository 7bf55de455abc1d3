"""How long does planning take, what does profiling cost, and how exact are predictions?

    python scripts/bench_planning.py [--part planning] [--part sweep] [--part chain] [-o FILE]

- planning: from a stored profile, on GPT-2 and Llama of 12 to 96 layers and on a chain of 1,000 x
  (Linear, Tanh), each in a process of its own; process time to read the profile and to plan for
  60 % of the plain peak, most resident memory, and what profiling took in plain steps.
- sweep: predicted and measured peak of GPT-2 over ten budgets.
- chain: 200 equal (Linear(256, 256), Tanh), batch 4096: the lowest peak above the baseline, in
  activations, with at most 1, 2 and 3 extra forwards.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_common import Size, build, facts, timed_s, update_results
from ckpt_mem import LinearCount
from torch import nn
from tqdm import tqdm

import planner
from planner.memory.meter import meter_for, step_tensors
from planner.planning.offline import from_profile
from planner.training_step.step import make_step
from planner.verifier.measure import measure_peak

LAYERS = (12, 24, 48, 96)
TARGETS_S = {12: 1.0, 96: 10.0, 1000: 30.0}
"""Planning seconds allowed, by number of layers."""
CHAIN_TARGETS = {1: 34, 2: 26, 3: 18}
"""Activations above the baseline allowed, by extra forwards."""
SMALL = Size(layers=12, width=64, heads=4, batch=2, length=64, vocabulary=100)


def model_of(name: str, layers: int) -> tuple[nn.Module, Any]:
    """Return a small model of so many layers, and its inputs."""
    if name == "chain":
        return linear_tanh(layers, width=16), (torch.randn(64, 16),)
    model, inputs, _ = build(name, replace(SMALL, layers=layers))
    return model, inputs


def linear_tanh(layers: int, width: int) -> nn.Module:
    """Return layers x (Linear, Tanh)."""
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())))


def plan_case(name: str, layers: int) -> dict[str, Any]:
    """Profile one model, then plan it in a process of its own."""
    model, inputs = model_of(name, layers)
    step = make_step(model, inputs=inputs)
    step.run()
    plain_s = min(timed_s(step.run) for _ in range(3))
    profiles: list[planner.Profile] = []
    profiling_s = timed_s(lambda: profiles.append(planner.profile(model, inputs=inputs)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profiles[0].save(path)
        command = [sys.executable, __file__, "--plan-file", str(path)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {
        "model": name,
        "layers": layers,
        "ops": len(profiles[0].ops),
        "plain_step_s": round(plain_s, 4),
        "profiling_s": round(profiling_s, 3),
        "profiling_in_plain_steps": round(profiling_s / plain_s, 1),
        **found,
        "planning_target_s": TARGETS_S.get(layers),
    }


def plan_file(path: Path) -> dict[str, Any]:
    """Read a profile and plan from it; return times, memory and the plan's numbers."""
    start = time.process_time()
    profile = planner.Profile.load(path)
    read = time.process_time()
    plan = _planned(profile, profile.plain_peak_bytes * 6 // 10)
    planned = time.process_time()
    return {
        "read_s": round(read - start, 3),
        "planning_s": round(planned - read, 3),
        "resident_mib": most_resident_mib(),
        "status": plan.status,
        "solver": plan.solver,
        "gap": plan.gap,
        "overhead_ratio": plan.predicted_overhead_ratio,
    }


def _planned(profile: planner.Profile, budget_bytes: int) -> planner.Plan:
    """Return the plan for a budget, or for the floor where that is higher."""
    try:
        return from_profile(profile, budget_bytes)
    except planner.InfeasibleBudgetError as error:
        return from_profile(profile, error.min_peak_bytes)


def most_resident_mib() -> int:
    """Return the most memory that this process ever held; 0 where the system does not say."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) // 1024 if found else 0


def planning(layers: Sequence[int], chain_layers: int) -> list[dict[str, Any]]:
    """Run all planning cases; a budget out of reach is reported as such."""
    cases = [(name, count) for name in ("gpt2", "llama") for count in layers]
    rows = []
    for name, count in tqdm([*cases, ("chain", chain_layers)], disable=None, leave=False):
        rows.append(plan_case(name, count))
        print(rows[-1], flush=True)
    return rows


def sweep(layers: int, budgets: int = 10) -> list[dict[str, Any]]:
    """Plan for budgets between the floor and the plain peak, and measure each."""
    model, inputs, _ = build("gpt2", replace(SMALL, layers=layers))
    profile = planner.profile(model, inputs=inputs)
    step = make_step(model, inputs=inputs)
    low = floor_bytes(profile)
    rows = []
    for number in tqdm(range(budgets), disable=None, leave=False):
        budget = low + (profile.plain_peak_bytes - low) * number // (budgets - 1)
        plan = from_profile(profile, budget)
        with planner.apply(model, plan):
            measured = max(measure_peak(step) for _ in range(2))
        rows.append(
            {
                "budget_bytes": budget,
                "predicted_peak_bytes": plan.predicted_peak_bytes,
                "measured_peak_bytes": measured,
                "error_ratio": round(plan.predicted_peak_bytes / measured - 1, 6),
                "overhead_ratio": plan.predicted_overhead_ratio,
            }
        )
        print(rows[-1], flush=True)
    return rows


def floor_bytes(profile: planner.Profile) -> int:
    """Return the smallest peak that a plan reaches."""
    try:
        from_profile(profile, 1)
    except planner.InfeasibleBudgetError as error:
        return error.min_peak_bytes
    raise AssertionError("one byte was enough")


def chain(layers: int, batch: int, width: int) -> list[dict[str, Any]]:
    """Find the lowest peak of the chain with at most so many extra forwards.

    On the meta device: sizes are real, nothing is computed, and the plans run there.
    """
    with torch.device("meta"):
        model, x = linear_tanh(layers, width), torch.randn(batch, width)
    profile = planner.profile(model, inputs=(x,), loss_fn=torch.sum)
    parts: Counter[str] = Counter()
    for storage in profile.storages:
        parts[storage.category] += storage.bytes
    points = [_chain_point(model, x, profile, budget) for budget in tqdm(_budgets(profile))]
    best = [min(p for p in points if p[1] <= extra * layers) for extra in CHAIN_TARGETS]
    activation, baseline = x.numel() * x.element_size(), parts["parameter"] + parts["input"]
    return [
        {
            "extra_forwards_allowed": extra,
            "extra_forwards": round(linears / layers, 3),
            "predicted_peak_bytes": predicted,
            "measured_peak_bytes": peak,
            "activations_above_parameters_and_input": round((peak - baseline) / activation, 2),
            "gradients_in_activations": round(parts["gradient"] / activation, 2),
            "activations_above_those_and_gradients": round(
                (peak - baseline - parts["gradient"]) / activation, 2
            ),
            "target": CHAIN_TARGETS[extra],
        }
        for extra, (peak, linears, predicted) in zip(CHAIN_TARGETS, best, strict=True)
    ]


def _budgets(profile: planner.Profile, steps: int = 40) -> list[int]:
    low, high = floor_bytes(profile), profile.plain_peak_bytes
    ratio = (high / low) ** (1 / steps)
    return [int(low * ratio**i) for i in range(steps + 1)]


def _chain_point(
    model: nn.Module, x: torch.Tensor, profile: planner.Profile, budget: int
) -> tuple[int, int, int]:
    """Return the measured peak, the Linears replayed and the predicted peak."""
    plan = from_profile(profile, budget)
    model.zero_grad(set_to_none=True)
    with planner.apply(model, plan):
        meter = meter_for(x.device, step_tensors(model, inputs=(x,)))
        with meter, LinearCount() as linears:
            out = model(x)
            out.sum().backward()
    forward = sum(isinstance(module, nn.Linear) for module in model.modules())
    return meter.peak_bytes, linears.calls - forward, plan.predicted_peak_bytes


PARTS = ("planning", "sweep", "chain")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for, print them and write the file."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="(all)")
    parser.add_argument("--layers", type=int, nargs="+", default=list(LAYERS), help=f"{LAYERS}")
    for name, value in (("chain-layers", 1000), ("batch", 4096), ("width", 256), ("depth", 200)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    default = Path("scripts/results/bench_planning.json")
    parser.add_argument("-o", "--output", type=Path, default=default, help=f"({default})")
    parser.add_argument("--plan-file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    if args.plan_file is not None:
        print(json.dumps(plan_file(args.plan_file)))
        return 0
    command = " ".join(["python scripts/bench_planning.py", *given])
    parts = {
        "planning": partial(planning, args.layers, args.chain_layers),
        "sweep": partial(sweep, min(args.layers)),
        "chain": partial(chain, args.depth, args.batch, args.width),
    }
    for part in args.part or PARTS:
        rows = parts[part]()
        print(part, *rows, sep="\n", flush=True)
        update_results(args.output, {part: {**facts(command), "rows": rows}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
