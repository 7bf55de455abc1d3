"""What does fitting a budget cost? Added step time and peak of our plans, beside checkpointing.

    python scripts/bench_overhead.py [--model gpt2] [--rounds 5] [--layers 12] [-o FILE]

Per model, interleaved in one process on one thread: the plain step; torch's
`checkpoint(use_reentrant=False)` on every block; the same on the fewest first blocks that meet the
midpoint budget, halfway between the plain peak and that of every block; groups of blocks, as
`checkpoint_sequential` makes them; torch's selective checkpointing with matmul results kept; our
plans for the midpoint budget and for the peak of every block. Times are process times; ratios are
taken within a round, next to the plain step of that round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_common import MODELS, Size, build, facts, timed_s, update_results
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

import planner
from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.memory.meter import meter_for, step_tensors
from planner.units import MIB

aten = torch.ops.aten
MATMULS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
PLAIN, EVERY, FEWEST = "plain", "checkpoint, every block", "checkpoint, fewest blocks"
OURS, OURS_LOW = "ours, midpoint", "ours, peak of every block"
GROUPS = 4
"""Segments of the `checkpoint_sequential` variant; the last one is not checkpointed."""


@contextmanager
def replaced(forwards: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Give modules other forwards, for as long as the block lasts."""
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


def checkpointed(blocks: Sequence[nn.Module], **how: Any) -> Any:
    """Put torch's checkpoint on blocks."""
    return replaced({b: partial(checkpoint, b.forward, use_reentrant=False, **how) for b in blocks})


def keep_matmuls() -> Any:
    """Return torch's selective checkpointing that keeps what matmuls made."""

    def policy(context: object, op: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
        keep = getattr(op, "overloadpacket", None) in MATMULS
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def grouped(blocks: Sequence[nn.Module], groups: int) -> Any:
    """Run blocks in groups under one checkpoint each, but the last group.

    What `checkpoint_sequential` does for an `nn.Sequential`, for a library's own loop: the first
    block of a group runs the whole group, and the others pass their input on.
    """
    length = len(blocks) // groups
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for start in range(0, length * (groups - 1), length):
        first, *others = blocks[start : start + length]
        inner = [block.forward for block in (first, *others)]
        forwards[first] = partial(checkpoint, partial(in_turn, inner), use_reentrant=False)
        forwards.update({block: pass_on for block in others})
    return replaced(forwards)


def in_turn(forwards: Sequence[Callable[..., Any]], hidden: Any, *args: Any, **kwargs: Any) -> Any:
    """Run blocks one after the other with the same further arguments."""
    for forward in forwards:
        hidden = forward(hidden, *args, **kwargs)
    return hidden


def pass_on(hidden: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the first argument."""
    return hidden


class Planned:
    """A plan that comes and goes with its tapes kept, as if it had stayed on."""

    def __init__(self, model: nn.Module, plan: planner.Plan) -> None:
        self.model, self.plan, self.runtime = model, plan, Runtime(plan)

    def __call__(self) -> AbstractContextManager[Runtime]:
        """Hook the model."""
        return applied(self.model, self.runtime)


@dataclass
class Row:
    """One variant of one model."""

    variant: str
    peak_bytes: int
    min_s: float = 0.0
    median_s: float = 0.0
    added_ratio_of_mins: float = 0.0
    added_ratio_median: float = 0.0
    replayed_matmul_flops_ratio: float | None = None
    replayed_flops_ratio: float | None = None
    predicted_peak_bytes: int | None = None
    predicted_overhead_ratio: float | None = None


class Bench:
    """One model, and how to run and measure its step."""

    def __init__(self, name: str, size: Size) -> None:
        self.name = name
        self.model, self.inputs, where = build(name, size)
        self.blocks = list(self.model.get_submodule(where))
        self.variants: dict[str, Callable[[], Any]] = {}

    def step(self) -> None:
        """Run forward and backward from empty gradients."""
        self.model.zero_grad(set_to_none=True)
        output = self.model(**self.inputs)
        output.loss.backward()

    def peak_bytes(self, variant: Callable[[], Any]) -> int:
        """Return the most live bytes of one step under a variant."""
        self.model.zero_grad(set_to_none=True)
        tracked = step_tensors(self.model, inputs=tuple(self.inputs.values()))
        with variant(), meter_for("cpu", tracked) as meter:
            self.step()
        return meter.peak_bytes

    def flops(self, variant: Callable[[], Any]) -> tuple[int, int]:
        """Return the floating-point operations of one step: of matmuls, and of all known ops."""
        with variant(), FlopCounterMode(display=False) as counter:
            self.step()
        return _matmul_and_all(counter)

    def forward_flops(self) -> tuple[int, int]:
        """Return the same of a forward alone."""
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.model(**self.inputs)
        return _matmul_and_all(counter)

    def fewest_blocks(self, budget_bytes: int) -> int:
        """Return the fewest first blocks that meet a budget under checkpoint, by bisection."""
        low, high = 1, len(self.blocks)
        while low < high:
            middle = (low + high) // 2
            met = self.peak_bytes(lambda m=middle: checkpointed(self.blocks[:m])) <= budget_bytes
            low, high = (low, middle) if met else (middle + 1, high)
        return low

    def planned(self, profile: planner.Profile, budget_bytes: int) -> Planned:
        """Return our plan for a budget."""
        plan = planner.plan(self.model, budget_mb=f"{budget_bytes}B", profile=profile)
        return Planned(self.model, plan)


def _matmul_and_all(counter: FlopCounterMode) -> tuple[int, int]:
    counts = counter.get_flop_counts()["Global"]
    return sum(n for op, n in counts.items() if op in MATMULS), sum(counts.values())


def prepare(bench: Bench) -> dict[str, Any]:
    """Fill in the variants; returns facts about them."""
    blocks = bench.blocks
    every = partial(checkpointed, blocks)
    plain_bytes, every_bytes = bench.peak_bytes(partial(replaced, {})), bench.peak_bytes(every)
    midpoint_bytes = (plain_bytes + every_bytes) // 2
    fewest = bench.fewest_blocks(midpoint_bytes)
    profiles: list[planner.Profile] = []
    plain_s = timed_s(bench.step)
    profiling_s = timed_s(
        lambda: profiles.append(planner.profile(bench.model, inputs=bench.inputs))
    )
    profile = profiles[0]
    bench.variants = {
        PLAIN: partial(replaced, {}),
        EVERY: every,
        FEWEST: partial(checkpointed, blocks[:fewest]),
        f"checkpoint_sequential, {GROUPS} segments": partial(grouped, blocks, GROUPS),
        "selective checkpoint, matmuls kept": partial(
            checkpointed, blocks, context_fn=keep_matmuls
        ),
        OURS: bench.planned(profile, midpoint_bytes),
        OURS_LOW: bench.planned(profile, every_bytes),
    }
    return {
        "midpoint_bytes": midpoint_bytes,
        "every_block_bytes": every_bytes,
        "fewest_blocks": fewest,
        "profiling_in_plain_steps": round(profiling_s / plain_s, 1),
    }


def measure(bench: Bench, rounds: int) -> list[Row]:
    """Measure peaks, then times in turns."""
    rows = []
    for name, variant in bench.variants.items():  # the engine records its tapes here
        rows.append(Row(name, max(bench.peak_bytes(variant) for _ in range(2))))
    taken: dict[str, list[float]] = {name: [] for name in bench.variants}
    for _ in tqdm(range(rounds), desc=bench.name, disable=None, leave=False):
        for name, variant in bench.variants.items():
            with variant():
                taken[name].append(timed_s(bench.step))
    for row in rows:
        _sum_up(row, taken[row.variant], taken[PLAIN])
    return rows


def _sum_up(row: Row, mine: Sequence[float], plain: Sequence[float]) -> None:
    row.min_s, row.median_s = round(min(mine), 4), round(statistics.median(mine), 4)
    row.added_ratio_of_mins = round(min(mine) / min(plain) - 1, 4)
    pairs = [a / b - 1 for a, b in zip(mine, plain, strict=True)]
    row.added_ratio_median = round(statistics.median(pairs), 4)


def count_flops(bench: Bench, rows: Sequence[Row]) -> None:
    """Fill in what our plans recompute, as a share of the forward's operations."""
    forward, plain = bench.forward_flops(), bench.flops(bench.variants[PLAIN])
    for row in rows:
        variant = bench.variants[row.variant]
        if isinstance(variant, Planned):
            mine = bench.flops(variant)
            row.replayed_matmul_flops_ratio = round((mine[0] - plain[0]) / forward[0], 4)
            row.replayed_flops_ratio = round((mine[1] - plain[1]) / forward[1], 4)
            row.predicted_peak_bytes = variant.plan.predicted_peak_bytes
            row.predicted_overhead_ratio = variant.plan.predicted_overhead_ratio


def verdicts(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Compare our rows with the targets; both ways of taking the ratio are given."""
    by_name = {row.variant: row for row in rows}
    ours, low, every, best = (by_name[variant] for variant in (OURS, OURS_LOW, EVERY, FEWEST))
    decoder = name in ("gpt2", "llama")
    return {
        "added_of_best_k": [
            round(ours.added_ratio_of_mins / best.added_ratio_of_mins, 3),
            round(ours.added_ratio_median / best.added_ratio_median, 3),
        ],
        "added_of_best_k_target": 1 / 3 if decoder else 0.6,
        "added_of_every_block_at_its_peak": [
            round(low.added_ratio_of_mins / every.added_ratio_of_mins, 3),
            round(low.added_ratio_median / every.added_ratio_median, 3),
        ],
        "added_of_every_block_target": 1.0,
        "replayed_matmul_flops_ratio": ours.replayed_matmul_flops_ratio,
        "replayed_matmul_flops_target": 0.05 if decoder else None,
    }


def table(name: str, rows: Sequence[Row]) -> str:
    """Return the rows as text."""
    lines = [
        f"{name:<36}{'min s':>8}{'median':>8}{'added':>8}{'median':>8}{'peak MiB':>10}{'flops':>8}"
    ]
    for r in rows:
        numbers = (r.min_s, r.median_s, r.added_ratio_of_mins, r.added_ratio_median)
        times = "".join(f"{number:>8.3f}" for number in numbers)
        flops = "" if r.replayed_flops_ratio is None else f"{r.replayed_flops_ratio:>8.3f}"
        lines.append(f"  {r.variant:<34}{times}{r.peak_bytes / MIB:>10.1f}{flops}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its tables and write its file."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each variant (5)")
    parser.add_argument("--model", action="append", choices=list(MODELS), help="(all)")
    for field, value in asdict(Size()).items():
        parser.add_argument(f"--{field}", type=int, default=value, help=f"({value})")
    default = Path("scripts/results/bench_overhead.json")
    parser.add_argument("-o", "--output", type=Path, default=default, help=f"({default})")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    size = Size(**{field: getattr(args, field) for field in asdict(Size())})
    for name in args.model or MODELS:
        bench = Bench(name, size)
        about = prepare(bench)
        rows = measure(bench, args.rounds)
        count_flops(bench, rows)
        found = verdicts(name, rows)
        print(table(name, rows), found, sep="\n", flush=True)
        command = " ".join(["python scripts/bench_overhead.py", *given])
        entry = {**facts(command), "size": asdict(size), **about, "verdicts": found}
        update_results(args.output, {name: {**entry, "rows": [asdict(row) for row in rows]}})
    return 0


if __name__ == "__main__":
    sys.exit(main())
