"""Estimated op times: rates of devices, the roofline, and the ranking that a plan depends on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from planner.cli import main
from planner.errors import DocumentError, InvalidInputsError
from planner.estimate.calibrate import calibrate
from planner.estimate.cost_model import CostModel
from planner.estimate.devices import DeviceSpec, device_spec, known_devices
from planner.estimate.fake_profile import build_fake_profile
from planner.profiler.build import build_profile
from planner.training_step.step import make_step

aten = torch.ops.aten
SPEC = DeviceSpec("round", "cuda", {"float32": 1e9, "bfloat16": 4e9}, 1e9, 5e8, 1e8, 1e7, 1000)
COSTS = CostModel(SPEC)


def time_ns(func, *args, flops=0):
    return COSTS.time_ns(func, (args, {}), func(*args), flops)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_the_scarcest_resource_decides():
    x = meta(1000)
    assert time_ns(aten.add.Tensor, x, x) == 1000 + 12_000  # 12,000 bytes
    assert time_ns(aten.tanh.default, x) == 1000 + 10_000  # 1,000 at 1e8 a second
    assert time_ns(aten.bernoulli_.float, x, 0.5) == 1000 + 100_000
    a, b = meta(10, 1000), meta(1000, 10)
    assert time_ns(aten.mm.default, a, b, flops=200_000) == 1000 + 200_000
    assert time_ns(aten.empty_like.default, x) == 1000


def test_the_dtype_of_a_product_decides_its_rate():
    a, b = meta(10, 1000, dtype=torch.bfloat16), meta(1000, 10, dtype=torch.bfloat16)
    assert time_ns(aten.mm.default, a, b, flops=400_000) == 1000 + 100_000


def test_an_expanded_tensor_counts_once():
    row = meta(1, 1000)
    assert time_ns(aten.sum.default, row.expand(1000, 1000)) == 1000 + 8 * 1001


@pytest.mark.parametrize("name", ["h100", "h200", "a100", "a6000", "rtx4090", "l4", "cpu"])
def test_the_table_names_its_sources(name):
    spec = known_devices()[name]
    assert spec.source and spec.kind == ("cpu" if name == "cpu" else "cuda")
    assert device_spec(name) is spec


def test_a_user_can_add_a_device(tmp_path: Path):
    path = tmp_path / "mine.json"
    path.write_text(SPEC.to_json())
    assert device_spec(str(path)) == SPEC


def test_unknown_devices_and_broken_files_are_explained(tmp_path: Path):
    with pytest.raises(InvalidInputsError, match="h1000") as caught:
        device_spec("h1000")
    assert "h100" in caught.value.numbers and "calibrate" in caught.value.fix
    path = tmp_path / "bad.json"
    for text in ("{", "[]", '{"name": "x"}', SPEC.to_json().replace("1000", "-5")):
        path.write_text(text)
        with pytest.raises(DocumentError, match="describes no device"):
            device_spec(str(path))


class Block(nn.Module):
    """A GPT-2 block: its ops, without the library's own bookkeeping."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.heads = nn.Dropout(0.1), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.attn(self.ln_1(x)).chunk(3, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.drop(self.proj(a.transpose(1, 2).reshape(x.shape)))
        h = self.fc(self.ln_2(x))
        h = 0.5 * h * (1 + torch.tanh(0.797885 * (h + 0.044715 * h**3)))
        found: torch.Tensor = x + self.drop(self.out(h))
        return found


def test_a_calibrated_model_ranks_the_ops_of_a_block_as_they_were_measured(tmp_path, capsys):
    assert main(["calibrate", "--device", "cpu", "-o", str(tmp_path / "here.json")]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "cpu"
    step = make_step(nn.Sequential(Block(256, 4)), inputs=torch.randn(4, 128, 256))
    real = build_profile(step)
    fake = build_fake_profile(step, CostModel(device_spec(str(tmp_path / "here.json"))))
    assert [op.name for op in fake.ops] == [op.name for op in real.ops]
    pairs = [
        (a.time_ns, b.time_ns)
        for a, b in zip(real.ops, fake.ops, strict=True)
        if a.phase == "forward" and a.unit >= 0
    ]
    assert len(pairs) > 25
    assert spearmanr(*zip(*pairs, strict=True)).statistic > 0.8


def test_calibrating_a_cpu_gives_rates_that_can_be():
    spec = calibrate("cpu", "mine")
    assert spec.name == "mine" and all(rate > 1e6 for rate in spec.flops_per_s.values())
    assert 100 < spec.overhead_ns < 1_000_000
