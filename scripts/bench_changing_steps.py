"""What do steps that differ from each other cost under a plan? Ratios to steps that stay the same.

    python scripts/bench_changing_steps.py [--rounds 5] [-o FILE]

Every block is recomputed, the dearest plan. `changing` is a model that gets another batch in each
step; `fixed` is a model that gets the very same batch each time. Both are timed on the same
batches, interleaved, on one thread, in process time; the least time of each batch counts.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from bench_common import facts, update_results
from torch import Tensor, nn

from planner.applier import manual_plan
from planner.applier.apply import apply

WIDTH, EXPERTS, BLOCKS, BATCHES = 32, 4, 4, 12
TIMED = (0, 5, 11)
"""Batches on which both models are timed."""


class Mixture(nn.Module):
    """Sends each token to one expert; `skips` leaves out experts without tokens."""

    def __init__(self, skips: bool) -> None:
        super().__init__()
        self.gate, self.skips = nn.Linear(WIDTH, EXPERTS), skips
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture's output beside its input."""
        tokens = x.reshape(-1, WIDTH)
        weight, choice = self.gate(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            mine = (choice == index).nonzero().squeeze(-1)
            if not self.skips or mine.numel():
                out = out.index_add(0, mine, expert(tokens[mine]) * weight[mine, None])
        return x + out.view_as(x)


class Chunked(nn.Module):
    """Works in as many chunks as the batch has rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the chunks' outputs beside the input."""
        parts = x.chunk(x.shape[0], 1)
        return x + torch.cat([self.down(F.gelu(self.up(part))) for part in parts], 1)


def layer() -> nn.Module:
    """Return a transformer layer."""
    return nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0.0, batch_first=True)


def few_tokens(_: int) -> Tensor:
    """Return three tokens, many times over: some experts get none."""
    return torch.randn(3, 1, WIDTH).mul(3).repeat(1, 300, 1)


class Case(NamedTuple):
    """A block, and its batch in each step."""

    block: Callable[[], nn.Module]
    batch: Callable[[int], Tensor]


CASES = {
    "routing": Case(lambda: Mixture(False), lambda _: torch.randn(32, 32, WIDTH)),
    "experts without tokens": Case(lambda: Mixture(True), few_tokens),
    "chunks": Case(Chunked, lambda i: torch.randn(1 + i % 6, 128, WIDTH)),
    "shapes": Case(layer, lambda i: torch.randn(16, 20 + 2 * i, WIDTH)),
    "shapes of small steps": Case(layer, lambda i: torch.randn(2, 8 + i, WIDTH)),
}


def run(model: nn.Module, x: Tensor) -> None:
    """Run one step."""
    model(x).square().mean().backward()
    model.zero_grad()


def planned(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy of a model with all blocks recomputed, which has seen a batch."""
    found = copy.deepcopy(model)
    apply(found, manual_plan(found, [str(number) for number in range(BLOCKS)]))
    for _ in range(3):
        run(found, x)
    return found


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Return times of a fixed and of a changing step, as multiples of the plain one's."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(case.block() for _ in range(BLOCKS)))
    batches = [case.batch(number) for number in range(BATCHES)]
    fixed = {number: planned(plain, batches[number]) for number in TIMED}
    changing = planned(plain, batches[0])
    best: dict[tuple[str, int], float] = {}
    for round_ in range(rounds + 1):
        for number, x in enumerate(batches):
            models = {"changing": changing, "plain": plain, "fixed": fixed.get(number, plain)}
            for name, model in models.items():
                start = time.process_time()
                run(model, x)
                taken = time.process_time() - start
                if round_:  # all batches have been seen
                    best[name, number] = min(taken, best.get((name, number), taken))
    total = {name: sum(best[name, n] for n in TIMED) for name in ("plain", "fixed", "changing")}
    return {
        "changing_to_fixed": round(total["changing"] / total["fixed"], 3),
        "fixed_to_plain": round(total["fixed"] / total["plain"], 3),
        "changing_to_plain": round(total["changing"] / total["plain"], 3),
        "plain_ms": round(total["plain"] / len(TIMED) * 1e3, 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, print each case and write the file."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="timed steps on each batch (5)")
    default = Path("scripts/results/bench_changing_steps.json")
    parser.add_argument("-o", "--output", type=Path, default=default, help=f"({default})")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    results = {}
    for name, case in CASES.items():
        results[name] = measure(case, args.rounds)
        print(f"{name}: {results[name]}")
    command = " ".join(["python scripts/bench_changing_steps.py", *given])
    update_results(args.output, {**facts(command), "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
