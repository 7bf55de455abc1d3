"""Do the frontier and the batch size hold what they promise?

    python scripts/bench_choices.py [--part frontier] [--rounds 5] [-o FILE]

`frontier`: the least overhead of a 12-layer GPT-2 at 50 budgets, from a stored profile: how long it
takes, and five of its points run: peak and added time, predicted and measured.

`batch`: `planner.best_batch` for a small GPT-2 under a budget, beside a plan made and timed for
every batch size, in turns.

On one thread; times are process times, and ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_common import Inputs, Size, build, facts, timed_s, update_results
from bench_overhead import PLAIN, Bench, Planned, measure, replaced

import planner

PLACES = (0.0, 0.1, 0.25, 0.5, 0.75)
"""Where on the frontier plans are run, from the smallest peak to the plain one."""

SMALL = Size(layers=4, width=128, heads=4, batch=8, length=64, vocabulary=500)


def frontier(rounds: int) -> dict[str, Any]:
    """Time the frontier and run five of its points."""
    bench = Bench("gpt2", Size())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpt2.json"
        profile = planner.profile(bench.model, inputs=bench.inputs)
        profile.save(path)
        found: list[planner.Frontier] = []
        taken_s = timed_s(lambda: found.append(planner.sweep(path)))
    points = found[0].points
    ratios = [point.overhead_ratio for point in points]
    chosen = [points[round(place * (len(points) - 1))] for place in PLACES]
    bench.variants = {PLAIN: partial(replaced, {})}
    for point in chosen:
        bench.variants[str(point.budget_bytes)] = bench.planned(profile, point.budget_bytes)
    rows = {row.variant: row for row in measure(bench, rounds)}
    print(f"{len(points)} budgets in {taken_s:.2f} s")
    table = []
    for point in chosen:
        row = rows[str(point.budget_bytes)]
        plan = bench.variants[row.variant]
        assert isinstance(plan, Planned)
        entry = {
            "budget_bytes": point.budget_bytes,
            "frontier_peak_bytes": point.peak_bytes,
            "predicted_peak_bytes": plan.plan.predicted_peak_bytes,
            "measured_peak_bytes": row.peak_bytes,
            "frontier_overhead_ratio": point.overhead_ratio,
            "predicted_overhead_ratio": plan.plan.predicted_overhead_ratio,
            "measured_overhead_ratio": row.added_ratio_of_mins,
            "measured_overhead_ratio_median": row.added_ratio_median,
        }
        table.append(entry)
        print(*(f"{name}={value}" for name, value in entry.items()), sep="  ", flush=True)
    monotone = all(a >= b for a, b in zip(ratios, ratios[1:], strict=False))
    return {
        "budgets": len(points),
        "taken_s": round(taken_s, 2),
        "monotone": monotone,
        "points": table,
    }


def batch(rounds: int) -> dict[str, Any]:
    """Choose a batch size, then try all."""
    model, _, _ = build("gpt2", SMALL)
    budget_bytes = planner.profile(model, inputs=_inputs(SMALL.batch)).plain_peak_bytes
    choice = planner.best_batch(model, budget_mb=f"{budget_bytes}B", make_inputs=_inputs)
    benches: dict[int, Bench] = {}
    for row in choice.rows:
        if row.fits:
            benches[row.batch_size] = _planned(row.batch_size, budget_bytes)
    taken: dict[int, list[float]] = {size: [] for size in benches}
    for _ in range(rounds + 1):  # the first one records
        for size, bench in benches.items():
            with bench.variants["planned"]():
                taken[size].append(timed_s(bench.step) / size)
    rates = {size: round(1 / min(times[1:]), 2) for size, times in taken.items()}
    best = max(rates, key=lambda size: rates[size])
    print(choice)
    print("all sizes, samples per second:", rates)
    share = round(rates[choice.batch_size] / rates[best], 4)
    print(f"chosen {choice.batch_size}, best {best}: {share:.1%} of its throughput")
    return {
        "budget_bytes": budget_bytes,
        "chosen": choice.batch_size,
        "best": best,
        "chosen_throughput_of_best": share,
        "samples_per_second": rates,
        "size": asdict(SMALL),
    }


def _inputs(batch_size: int) -> Inputs:
    generator = torch.Generator().manual_seed(batch_size)
    ids = torch.randint(0, SMALL.vocabulary, (batch_size, SMALL.length), generator=generator)
    return {"input_ids": ids, "labels": ids}


def _planned(batch_size: int, budget_bytes: int) -> Bench:
    bench = Bench("gpt2", replace(SMALL, batch=batch_size))
    plan = planner.plan(bench.model, budget_mb=f"{budget_bytes}B", inputs=bench.inputs)
    bench.variants["planned"] = Planned(bench.model, plan)
    return bench


PARTS = {"frontier": frontier, "batch": batch}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and write their file."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--part", action="append", choices=list(PARTS), help="(all)")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each variant (5)")
    default = Path("scripts/results/bench_choices.json")
    parser.add_argument("-o", "--output", type=Path, default=default, help=f"({default})")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for part in args.part or PARTS:
        command = " ".join(["python scripts/bench_choices.py", *given])
        update_results(args.output, {part: {**facts(command), **PARTS[part](args.rounds)}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
