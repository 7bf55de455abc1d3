"""Trains a small GPT-2 under a plan beside the plain model, for many steps.

    python scripts/soak.py [steps] [--budget 60%]

Both models start from the same weights and see the same batches and random numbers. Prints a line
every 100 steps; stops with exit code 1 when a loss or, at the end, a weight differs in a bit, or
when live memory grows. The batch's length changes now and then, so that recorded segments are left
and taken up again.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import planner
from planner.memory.meter import StorageMeter, meter_for, step_tensors

BATCH, LENGTH, VOCABULARY = 4, 64, 128
LINE_EVERY = 100


def build() -> nn.Module:
    """A small GPT-2 with dropout."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4, n_embd=64, n_head=4, vocab_size=VOCABULARY, n_positions=LENGTH, use_cache=False
    )
    return GPT2LMHeadModel(config).train()


def tokens(step: int) -> Tensor:
    """The batch of a step: a noisy count, of another length at every tenth step."""
    length = LENGTH if step % 10 else LENGTH // 2
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
    noise = torch.randint(0, 2, (BATCH, length), generator=generator)
    return (start + torch.arange(length) + noise) % VOCABULARY


@dataclass
class Trainer:
    """A model, its optimizer, and what is alive after its steps."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, number: int, meter: StorageMeter) -> tuple[float, int]:
        """Run a training step; returns its loss and the live bytes after it."""
        torch.manual_seed(number)
        batch = tokens(number)
        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        value = float(loss.detach())
        del loss, batch
        return value, meter.live_bytes


def trainer(model: nn.Module) -> Trainer:
    """Train with AdamW."""
    return Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def soak(steps: int, budget: str) -> bool:
    """Train both models side by side; returns whether all was equal and memory stayed flat."""
    plain = trainer(build())
    planned = trainer(copy.deepcopy(plain.model))
    batch = tokens(1)
    plan = planner.plan(
        planned.model, budget_mb=budget, inputs={"input_ids": batch, "labels": batch}
    )
    handle = planner.apply(planned.model, plan)
    held = [*step_tensors(plain.model), *step_tensors(planned.model)]
    settled: dict[int, int] = {}  # live bytes by position in the cycle of lengths
    gc.disable()  # memory must stay flat without the collector's help
    with meter_for("cpu", held) as meter:
        assert isinstance(meter, StorageMeter)
        for number in range(steps):
            expected, _ = plain.step(number, meter)
            loss, live_bytes = planned.step(number, meter)
            if loss != expected:
                print(f"step {number}: loss {loss!r}, plain {expected!r}")
                return False
            if number >= 20 and live_bytes > settled.setdefault(number % 10, live_bytes):
                print(f"step {number}: {live_bytes} live bytes, {settled[number % 10]} before")
                return False
            if (number + 1) % LINE_EVERY == 0:
                print(
                    f"step {number + 1}: loss {loss:.6f} equal, {live_bytes} live bytes, "
                    f"{handle.replayed_ops} ops replayed",
                    flush=True,
                )
    pairs = zip(plain.model.parameters(), planned.model.parameters(), strict=True)
    return handle.replayed_ops > 0 and all(torch.equal(a, b) for a, b in pairs)


def main() -> int:
    """Read the command line and soak."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="?", type=int, default=500)
    parser.add_argument("--budget", default="60%", help="budget of the plan (default 60%%)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    equal = soak(arguments.steps, arguments.budget)
    print("equal to the last bit, memory flat" if equal else "NOT EQUAL")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
