"""Plan small models of many architectures and measure what comes of it, with torch's own profiler.

    python scripts/sweep_architectures.py [--only gpt2 --only unet]

For each architecture and each budget (80, 60 and 45 % of the plain step's peak): whether a step
under the plan gives the same bits, whether its peak is within the budget, how far the prediction is
off, and how long planning took. The peak is that of the third step, by the memory events of
`torch.profiler`. Where no plan fits, the smallest peak that was found is the budget.

Results go to scripts/results/sweep_architectures.json, one entry for each architecture.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from architectures import ARCHITECTURES, Inputs
from bench_common import facts, update_results
from profiled_peak import bytes_of, profiled_peak
from torch import nn
from tqdm import tqdm

import planner
from planner.training_step.loss import default_loss

RESULTS = Path(__file__).parent / "results" / "sweep_architectures.json"
BUDGETS = (80, 60, 45)


def train(model: nn.Module, inputs: Inputs) -> None:
    """Run one step; its output goes once the loss exists."""
    default_loss(model(**inputs)).backward()


def trained(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """Return copies of the gradients and the buffers after a step from a fixed seed."""
    torch.manual_seed(1)
    model.zero_grad()
    train(model, inputs)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return [*gradients, *(buffer.clone() for buffer in model.buffers())]


def peak_of(model: nn.Module, inputs: Inputs) -> int:
    """Return the most live bytes of a step, by torch's profiler."""
    model.zero_grad()
    live = bytes_of((*model.parameters(), *model.buffers(), *inputs.values()))
    peak = profiled_peak(lambda: train(model, inputs), live)
    model.zero_grad()
    return peak


def plan_within(model: nn.Module, inputs: Inputs, share: int) -> tuple[planner.Plan, bool]:
    """Return the plan for a share of the plain peak, and whether that can be reached."""
    try:
        return planner.plan(model, budget_mb=f"{share}%", inputs=inputs), True
    except planner.InfeasibleBudgetError as error:
        lowest = f"{error.min_peak_bytes}B"
    return planner.plan(model, budget_mb=lowest, inputs=inputs), False


def row(name: str, share: int) -> dict[str, Any]:
    """Return what one model does under one budget."""
    model, inputs = ARCHITECTURES[name].build()
    plain_peak = peak_of(model, inputs)
    start = time.process_time()
    plan, reached = plan_within(model, inputs, share)
    planning_s = time.process_time() - start
    model, inputs = ARCHITECTURES[name].build()
    plain = trained(model, inputs)
    model, inputs = ARCHITECTURES[name].build()
    with planner.apply(model, plan):
        planned = trained(model, inputs)
        train(model, inputs)
        peak = peak_of(model, inputs)
    same = len(plain) == len(planned) and all(map(torch.equal, plain, planned))
    return {
        "budget": f"{share}%",
        "reached": reached,
        "same_bits": same,
        "plain_peak_bytes": plain_peak,
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": peak,
        "within_budget": peak <= plan.budget_bytes,
        "prediction_error": round(plan.predicted_peak_bytes / peak - 1, 5),
        "planning_s": round(planning_s, 2),
        "segments": len(plan.segments),
        "excluded": [exclusion.unit for exclusion in plan.exclusions],
    }


def main() -> int:
    """Measure, print a table and write the results; returns 1 where bits or budget do not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=ARCHITECTURES, help="may be repeated")
    names = parser.parse_args().only or list(ARCHITECTURES)
    torch.set_num_threads(1)
    wrong = 0
    for name in tqdm(names, disable=None):
        rows = []
        for share in BUDGETS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    rows.append(row(name, share))
                except planner.PlannerError as error:
                    rows.append({"budget": f"{share}%", "error": str(error)})
        wrong += sum(not (r.get("same_bits") and r["within_budget"]) for r in rows)
        for r in rows:
            tqdm.write(f"{name:18} {r}")
        entry = {"family": ARCHITECTURES[name].family, "rows": rows}
        update_results(RESULTS, {name: entry})
    update_results(RESULTS, {"facts": facts("python scripts/sweep_architectures.py")})
    print(f"{len(names)} architectures, {wrong} rows where bits or budget do not hold")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
