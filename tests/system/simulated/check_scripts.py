"""The script that measures on a GPU, rehearsed on the simulated device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

import gpu_check


def test_the_gpu_check_fills_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "REPEATS", 1)
    monkeypatch.setattr(gpu_check, "BUDGETS", ("lowest",))
    path = tmp_path / "out.json"
    assert gpu_check.main(["--rehearse", "-o", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["missing"] == {} and found["hardware"]["accelerator"] == "sim"
    assert "block_bytes=512" in found["allocator"]["counts_in"]
    assert found["ckpt_mem"]["plan"]["within_budget"]
    for name in ("gpt2", "llama"):
        row = found[name]["lowest"]
        assert row["gradients_equal"] and row["within_budget"] and not row["left_out"]
        assert row["predicted_mib"] == row["measured_mib"] <= row["reserved_mib"]
        assert found[name]["plain"]["peak_mib"] > row["peak_mib"]
