"""The scripts beside the package: they run, and their numbers are the known ones."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import planner
from planner.units import MIB

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str) -> ModuleType:
    """Import a script by its name."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_the_segment_sweep_gives_the_known_peaks() -> None:
    # The meta device computes nothing, and its storages have the sizes of the real ones.
    ckpt_mem = script("ckpt_mem")
    setting = ckpt_mem.Setting("meta", pairs=16, width=1024, rows=4096)
    rows = list(ckpt_mem.sweep(setting, [2, 4, 8, 16]))
    peaks = [round(row.peak_bytes / MIB, 1) for row in rows]
    assert peaks == [356.1, 272.1, 224.1, 248.1, 356.1]
    assert [row.recomputed_linears for row in rows] == [0, 8, 12, 14, 15]


def test_plans_meet_every_swept_peak_with_fewer_linears(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ckpt_mem = script("ckpt_mem")
    setting = ckpt_mem.Setting("cpu", pairs=8, width=32, rows=512)
    x = setting.input()
    profile = planner.profile(setting.model(), inputs=(x,), loss_fn=torch.sum)
    for swept in ckpt_mem.sweep(setting, [2, 4]):
        row = ckpt_mem.planned(setting, profile, swept.peak_bytes)
        assert row.peak_bytes <= swept.peak_bytes
        assert row.peak_bytes == row.predicted_bytes
        assert row.recomputed_linears <= swept.recomputed_linears


def test_ckpt_mem_prints_sweep_sweet_spot_and_plans(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--pairs", "4", "--width", "32", "--rows", "512", "--segments", "2", "4"]
    assert script("ckpt_mem").main(["--device", "cpu", "--budget", "1MB", *small]) == 0
    printed = capsys.readouterr().out
    assert "sweet spot: 2 segments" in printed
    assert printed.count("plan for ") >= 3


def test_a_profile_of_the_offline_profiler_is_found_by_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("offline_net.py").write_text(
        "import torch\n"
        "def net():\n"
        "    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(32, 32),"
        " torch.nn.Tanh()) for _ in range(6)])\n"
        "def step():\n"
        "    return net(), (torch.ones(256, 32),), torch.sum\n"
    )
    assert script("profile_model").main(["offline_net.py:step"]) == 0
    assert len(list(Path("profiles").glob("*.json"))) == 1
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)])
    plan = planner.plan(model, budget_mb="80%")
    assert plan.segments and plan.predicted_peak_bytes <= plan.budget_bytes
    assert script("profile_model").main(["offline_net.py:missing"]) == 2


@pytest.mark.nightly
def test_the_benchmark_measures_all_variants_and_writes_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = script("bench_engine")
    file = tmp_path / "bench.json"
    options = ["--model", "tiny", "--dropout", "0.1", "--rounds", "1", "-o", str(file)]
    assert bench.main(options) == 0
    written = json.loads(file.read_text())
    by_variant = {result["variant"]: result for result in written["results"]}
    assert list(by_variant) == list(bench.VARIANTS)
    plain_bytes = by_variant["plain"]["peak_bytes"]
    assert by_variant["engine, every block recomputed"]["peak_bytes"] < plain_bytes
    assert by_variant["engine, recording only"]["peak_bytes"] == plain_bytes
    assert set(written) == {"command", "sizes", "versions", "hardware", "results"}
    printed = capsys.readouterr().out
    assert all(variant in printed for variant in bench.VARIANTS)


def test_every_command_is_in_the_readme() -> None:
    from planner.cli import build_parser

    readme = (SCRIPTS.parent / "README.md").read_text()
    commands = re.findall(r"^    (\w+)  ", build_parser().format_help(), re.MULTILINE)
    assert len(commands) >= 6
    assert [name for name in commands if f"planner {name}" not in readme] == []
