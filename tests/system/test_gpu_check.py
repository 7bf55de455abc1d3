"""The GPU check imports, says when there is no GPU, and its parts run on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import gpu_check


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **options: None)
    assert gpu_check.main(["-o", str(tmp_path / "out.json")]) == 0
    assert "no accelerator" in capsys.readouterr().out
    assert not (tmp_path / "out.json").exists()


def test_a_rehearsal_fills_every_part(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "REPEATS", 1)
    monkeypatch.setattr(gpu_check, "BUDGETS", ("85%",))
    path = tmp_path / "out.json"
    assert gpu_check.main(["--rehearse", "-o", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["missing"] == {}
    assert found["ckpt_mem"]["plan"]["within_budget"]
    for name in ("gpt2", "llama"):
        row = found[name]["85%"]
        assert row["gradients_equal"] and row["within_budget"] and not row["left_out"]
        assert row["predicted_mib"] == row["measured_mib"]
        assert found[name]["plain"]["peak_mib"] > row["peak_mib"]
        assert found[name]["every block under checkpoint"]["step_ms"] > 0


def test_a_part_that_fails_or_comes_too_late_is_named():
    clock = gpu_check.Clock(100)
    assert clock.part("broken", lambda: 1 // 0) is None
    clock.end = 0
    assert clock.part("late", lambda: 1) is None
    assert clock.missing["late"] == "no time left" and "ZeroDivision" in clock.missing["broken"]
