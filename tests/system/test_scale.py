"""A model of 70 billion parameters is planned on a small machine, without its memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import planner
from planner.cli import main
from planner.errors import InfeasibleBudgetError, InvalidInputsError
from planner.estimate.sharding import shard_profile

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import llama70b  # noqa: E402

GIB = 1024**3
SMALL = {"width": 64, "inner": 128, "heads": 4, "kv_heads": 2, "words": 100}


def held(profile: planner.Profile, category: str, born: bool = False) -> int:
    return sum(
        s.bytes for s in profile.storages if s.category == category and (born or s.birth < 0)
    )


@pytest.fixture(scope="module")
def small() -> planner.Profile:
    with torch.device("meta"):
        model, ids = llama70b.Llama(3, **SMALL), torch.empty(2, 16, dtype=torch.long)
    return planner.profile(model, inputs=ids, optimizer="adamw", device="cpu")


def test_a_rank_holds_its_part_and_gathers_units_while_they_run(small: planner.Profile) -> None:
    rank = shard_profile(small, 4)
    whole = held(small, "parameter")
    part = held(rank, "parameter")
    assert part == pytest.approx(whole / 4, rel=0.02)
    assert held(rank, "optimizer") == pytest.approx(held(small, "optimizer") / 4, rel=0.02)
    gathered = [s for s in rank.storages if s.category == "parameter" and s.birth >= 0]
    # 3 layers, embedding, norm and head, each in forward and in backward
    assert len(gathered) == 12
    assert sum(s.bytes for s in gathered if s.death < _backward_start(rank)) == whole
    assert rank.step.shards == 4 and rank.plain_peak_bytes < small.plain_peak_bytes


def _backward_start(profile: planner.Profile) -> int:
    return next(i for i, op in enumerate(profile.ops) if op.phase == "backward")


def test_gradients_are_whole_until_their_unit_is_over(small: planner.Profile) -> None:
    rank = shard_profile(small, 4)
    plain = [s for s in small.storages if s.category == "gradient"]
    found = [s for s in rank.storages if s.category == "gradient"]
    assert len(found) == 2 * len(plain)
    parts = [s for s in found if s.death == len(rank.ops)]
    assert sum(s.bytes for s in parts) == pytest.approx(sum(s.bytes for s in plain) / 4, rel=0.02)
    wholes = [s for s in found if s.death < len(rank.ops)]
    assert sorted(s.bytes for s in wholes) == sorted(s.bytes for s in plain)


def test_one_rank_is_the_plain_step(small: planner.Profile) -> None:
    assert shard_profile(small, 1) is small
    with pytest.raises(InvalidInputsError, match="rank"):
        planner.profile(
            torch.nn.Linear(2, 2), inputs=torch.ones(1, 2), device=planner.Device(ranks=0)
        )


def test_a_model_on_the_meta_device_is_planned_and_the_plan_says_so() -> None:
    with torch.device("meta"):
        model, ids = llama70b.Llama(3, **SMALL), torch.empty(8, 64, dtype=torch.long)
    plan = planner.plan(model, budget_mb="70%", inputs=ids)
    assert plan.predicted_peak_bytes <= plan.budget_bytes
    assert plan.measured_peak_bytes is None
    assert plan.step.estimated_for == "cpu" and "estimated" in plan.notes[0]
    assert all(parameter.is_meta for parameter in model.parameters())
    real = llama70b.Llama(3, **SMALL)
    ids = torch.randint(0, 100, (8, 64))
    found = planner.verify(real, plan, inputs=ids, repeats=1)
    assert found.gradients_equal
    assert found.measured_peak_bytes == plan.predicted_peak_bytes


MODEL = """
import sys, torch
sys.path.insert(0, {scripts!r})
import llama70b

def build():
    with torch.device("meta"):
        model = llama70b.Llama(2, width=64, inner=128, heads=4, kv_heads=2, words=100)
        return model, (torch.empty(4, 64, dtype=torch.long),)
"""


def test_the_command_takes_the_whole_description(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "small_llama.py"
    file.write_text(MODEL.format(scripts=str(ROOT / "scripts")))
    flags = "--budget 85% --device-spec a100 --shards 4 --optimizer sgd --autocast bfloat16 --json"
    assert main(["plan", f"{file}:build", *flags.split()]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert step["device"] == "cuda" and step["estimated_for"] == "a100"
    assert (step["shards"], step["optimizer"], step["autocast"]) == (4, "SGD", "bfloat16")
    assert main(["plan", f"{file}:build", "--budget", "85%", "--device-spec", "b1"]) != 0
    assert "no device is called 'b1'" in capsys.readouterr().err


def test_a_cuda_device_gets_its_own_kernels() -> None:
    class Mixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = torch.nn.Linear(64, 64), torch.nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.drop(self.layer(x))
            found: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(q, q, q)
            return found

    def ops(dtype: torch.dtype, device: str) -> str:
        x = torch.empty(2, 4, 16, 64, dtype=dtype)
        found = planner.profile(Mixed().to(dtype), inputs=x, device=device)
        return " ".join(op.name for op in found.ops)

    assert "_flash_attention_for_cpu" in ops(torch.float32, "cpu")
    assert "native_dropout" not in ops(torch.float32, "cpu")
    on_cuda = ops(torch.bfloat16, "h100")
    assert "_scaled_dot_product_flash_attention.default" in on_cuda
    assert "native_dropout.default" in on_cuda
    assert "_efficient_attention.default" in ops(torch.float32, "h100")


def test_unknown_optimizers_are_explained() -> None:
    with pytest.raises(InvalidInputsError, match="adamw"):
        planner.profile(torch.nn.Linear(2, 2), inputs=torch.ones(1, 2), optimizer="adamwww")


SCRIPT = """
import json, sys
sys.path.insert(0, "scripts")
import torch
import llama70b, planner
model, inputs = llama70b.build()
profile = planner.profile(
    model, inputs=inputs, device=planner.Device("h100", ranks=64), optimizer="adamw"
)
plans = [planner.plan(model, budget_mb=budget, profile=profile) for budget in ("80GB", "40GB")]
facts = [[p.predicted_peak_bytes, p.floor_bytes, p.predicted_overhead_ratio] for p in plans]
try:
    planner.plan(model, budget_mb="10GB", profile=profile)
except planner.InfeasibleBudgetError as error:
    floor = error.min_peak_bytes
print(json.dumps([facts, floor, str(plans[0]), sum(p.numel() for p in model.parameters())]))
"""


@pytest.mark.nightly
def test_seventy_billion_parameters_are_planned_in_a_laptops_memory() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    (at_80, at_40), floor, table, parameters = json.loads(run.stdout)
    assert parameters > 70e9
    assert at_80[0] <= 80 * GIB and at_40[0] <= 40 * GIB
    assert 0 < at_80[2] < at_40[2] < 0.4
    assert floor == at_80[1] == at_40[1] < 40 * GIB
    assert "layers.79" in table and "estimated for h100" in table
    assert taken.ru_maxrss < 4 * 1024**2, "KiB of memory"


def test_an_infeasible_budget_names_what_holds_it() -> None:
    with torch.device("meta"):
        model, ids = llama70b.Llama(2, **SMALL), torch.empty(2, 16, dtype=torch.long)
    with pytest.raises(InfeasibleBudgetError) as caught:
        planner.plan(model, budget_mb="1%", inputs=ids, device=planner.Device("h100", ranks=8))
    assert caught.value.holders
