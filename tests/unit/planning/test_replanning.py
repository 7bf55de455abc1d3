"""Pins and notes survive planning again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import planner
from planner.cli import main

NET = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)]
    return nn.Sequential(*layers), torch.randn(512, 32)
"""


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)))


X = torch.randn(512, 32)


def test_a_base_hands_its_pins_and_notes_on() -> None:
    first = planner.plan(net(), budget_mb="80%", inputs=X, save=["0"])
    first = replace(first, notes=("agreed in review",))
    second = planner.plan(net(), budget_mb="85%", inputs=X, base=first, save=["1"])
    assert second.pins.save == ("0", "1") and second.notes == ("agreed in review",)


def test_a_newer_pin_wins_over_its_opposite() -> None:
    first = planner.plan(net(), budget_mb="90%", inputs=X, save=["1"])
    second = planner.plan(net(), budget_mb="90%", inputs=X, base=first, recompute=["1"])
    assert second.pins == planner.documents.Pins((), ("1",))


def test_the_command_keeps_the_pins_of_the_file_that_it_overwrites(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    model, out = f"{tmp_path / 'net.py'}:build", tmp_path / "net.json"
    command = ["plan", model, "--budget", "90%", "-o", str(out), "-q"]
    assert main([*command, "--save", "2"]) == 0
    assert main([*command, "--force"]) == 0
    assert planner.Plan.load(out).pins.save == ("2",)
