"""What does the replay engine cost? Step time and peak on GPT-2, beside torch's checkpointing.

    python scripts/bench_engine.py [--rounds 7] [--model wide] [--dropout 0.1] [-o FILE]

Five variants of the same step run interleaved in one process, on one thread: plain; torch's
`checkpoint(use_reentrant=False)` on every block; our engine with every block recomputed; our
engine recording only, nothing recomputed; torch's selective checkpointing that keeps matmul
results. Times are process times. Prints a table and writes the numbers with versions, hardware
class and command.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel

import planner
from planner.applier.apply import manual_plan
from planner.memory.meter import meter_for, step_tensors
from planner.units import MIB

aten = torch.ops.aten
MATMULS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)


@dataclass(frozen=True, slots=True)
class Size:
    """One GPT-2 and its batch."""

    layers: int
    width: int
    heads: int
    batch: int
    length: int
    vocabulary: int
    rounds_factor: int  # short steps are noisier, and cheap to repeat


SIZES = {
    "wide": Size(
        layers=6, width=512, heads=8, batch=4, length=256, vocabulary=1000, rounds_factor=1
    ),
    "tiny": Size(
        layers=12, width=64, heads=4, batch=2, length=64, vocabulary=100, rounds_factor=10
    ),
}


@dataclass(frozen=True, slots=True)
class Result:
    """One variant of one model: process time of a step, and its peak."""

    model: str
    dropout: float
    variant: str
    min_ms: float
    median_ms: float
    min_ratio: float
    median_ratio: float
    peak_bytes: int


def build(size: Size, dropout: float) -> nn.Module:
    """Return a GPT-2 with random weights, the same each time."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=size.layers,
        n_embd=size.width,
        n_head=size.heads,
        n_positions=size.length,
        vocab_size=size.vocabulary,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model.train()


def leave_plain(model: nn.Module) -> None:
    """(a) Nothing."""


def checkpoint_blocks(model: nn.Module, **how: Any) -> None:
    """(b) Put torch's checkpoint around every block."""
    for block in model.transformer.h:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **how)


def recompute_blocks(model: nn.Module) -> None:
    """(c) Give up everything in each block."""
    planner.apply(model, manual_plan(model, block_names(model)))


def record_blocks(model: nn.Module) -> None:
    """(d) Record each block's tape, and keep everything."""
    planner.apply(model, manual_plan(model, block_names(model), keep_all=True))


def keep_matmuls(model: nn.Module) -> None:
    """(e) Put torch's selective checkpointing around every block."""

    def policy(context: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        keep = op in MATMULS
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    checkpoint_blocks(model, context_fn=partial(create_selective_checkpoint_contexts, policy))


VARIANTS: dict[str, Callable[[nn.Module], None]] = {
    "plain": leave_plain,
    "torch checkpoint, every block": checkpoint_blocks,
    "engine, every block recomputed": recompute_blocks,
    "engine, recording only": record_blocks,
    "torch selective, matmuls kept": keep_matmuls,
}


def block_names(model: nn.Module) -> list[str]:
    """Return the qualified names of the transformer blocks."""
    return [f"transformer.h.{index}" for index in range(len(model.transformer.h))]


def step(model: nn.Module, tokens: Tensor) -> None:
    """Run one forward and backward from empty gradients."""
    model.zero_grad(set_to_none=True)
    model(input_ids=tokens, labels=tokens).loss.backward()


def bench(name: str, dropout: float, rounds: int) -> list[Result]:
    """Time all variants of one model in turns, and measure their peaks."""
    size = SIZES[name]
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.length))
    models = {variant: build(size, dropout) for variant in VARIANTS}
    for variant, change in VARIANTS.items():
        change(models[variant])
        step(models[variant], tokens)  # warm up; the engine records its tapes here
    peaks = {variant: peak_bytes(model, tokens) for variant, model in models.items()}
    times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in tqdm(
        range(rounds * size.rounds_factor), desc=f"{name} {dropout}", disable=None, leave=False
    ):
        for variant, model in models.items():
            times[variant].append(timed(model, tokens))
    return [result(name, dropout, v, times, peaks) for v in VARIANTS]


def peak_bytes(model: nn.Module, tokens: Tensor) -> int:
    """Return the most live bytes of one step."""
    model.zero_grad(set_to_none=True)
    with meter_for("cpu", step_tensors(model, inputs=(tokens,))) as meter:
        step(model, tokens)
    return meter.peak_bytes


def timed(model: nn.Module, tokens: Tensor) -> float:
    """Return the process time of one step in milliseconds, without garbage collection."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    step(model, tokens)
    taken = time.process_time() - start
    gc.enable()
    return taken * 1e3


def result(
    name: str, dropout: float, variant: str, times: dict[str, list[float]], peaks: dict[str, int]
) -> Result:
    """Sum up one variant beside the plain step of the same run."""
    mine, plain = times[variant], times["plain"]
    return Result(
        model=name,
        dropout=dropout,
        variant=variant,
        min_ms=round(min(mine), 2),
        median_ms=round(statistics.median(mine), 2),
        min_ratio=round(min(mine) / min(plain), 4),
        median_ratio=round(statistics.median(mine) / statistics.median(plain), 4),
        peak_bytes=peaks[variant],
    )


def table(results: Sequence[Result]) -> str:
    """Return the results as text."""
    lines = [f"{'':<32}{'min ms':>9}{'median':>9}{'min x':>8}{'median x':>10}{'peak MiB':>10}"]
    for r in results:
        if r.variant == "plain":
            lines.append(f"{r.model}, dropout {r.dropout}")
        times = f"{r.min_ms:>9.1f}{r.median_ms:>9.1f}{r.min_ratio:>8.3f}{r.median_ratio:>10.3f}"
        lines.append(f"  {r.variant:<30}{times}{r.peak_bytes / MIB:>10.1f}")
    return "\n".join(lines)


def document(results: Sequence[Result], command: str) -> str:
    """Return the result file: what ran, on what, and the numbers."""
    facts = {
        "command": command,
        "sizes": {name: asdict(size) for name, size in SIZES.items()},
        "versions": {
            "planner": planner.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "architecture": platform.machine(),
            "vector": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        "results": [asdict(r) for r in results],
    }
    return json.dumps(facts, indent=2) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its table and write its file."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--rounds",
        type=int,
        default=7,
        help="timed steps of each variant; ten times as many of the tiny model (7)",
    )
    parser.add_argument("--model", action="append", choices=list(SIZES), help="(both)")
    parser.add_argument("--dropout", action="append", type=float, help="(0.1 and 0.0)")
    default = Path("scripts/results/bench_engine.json")
    parser.add_argument("-o", "--output", type=Path, default=default, help=f"({default})")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    results = []
    for name in args.model or SIZES:
        for dropout in args.dropout or (0.1, 0.0):
            results += bench(name, dropout, args.rounds)
    print(table(results))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(document(results, " ".join(["python scripts/bench_engine.py", *given])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
