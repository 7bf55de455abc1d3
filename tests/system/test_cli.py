"""The `planner` command as a user meets it: exit codes, what goes where, files left alone."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from planner.cli import main
from planner.cli.console import Console

MODEL_FILE = """
import torch
from torch import nn

def net(width=64, depth=4):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64), nn.Tanh())
              for _ in range(depth)]
    return nn.Sequential(*layers)

def inputs():
    return (torch.ones(512, 64),)

def with_loss():
    return net(), inputs(), torch.sum

def model_only():
    return net()

def noisy():
    print("a line on stdout while loading")
    return with_loss()

def changed():
    return net(width=32), inputs(), torch.sum

def raises():
    raise RuntimeError("no weights here")

def no_model():
    return 3

constant = 7
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a model file into a fresh working folder and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "net_file.py").write_text(MODEL_FILE)
    sys.modules.pop("net_file", None)
    return "net_file.py"


@pytest.fixture
def plan_file(net: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the file of a plan at 80% of the plain peak."""
    path = Path("plan.json")
    assert main(["plan", f"{net}:with_loss", "--budget", "80%", "-o", str(path), "-q"]) == 0
    capsys.readouterr()
    return path


def test_plan_prints_a_table_and_writes_the_file(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{net}:with_loss", "--budget", "80%", "-o", "plans/net.json"]) == 0
    seen = capsys.readouterr()
    plan = planner.Plan.load("plans/net.json")
    assert str(plan).strip() == seen.out.strip()
    assert "wrote plans/net.json" in seen.err
    assert plan.segments and plan.predicted_peak_bytes <= plan.budget_bytes


def test_json_is_the_document_even_when_the_model_prints(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{net}:noisy", "--budget", "80%", "--json"]) == 0
    seen = capsys.readouterr()
    plan = planner.Plan.from_json(seen.out)
    assert plan.to_json() == seen.out
    assert "a line on stdout while loading" in seen.err


def test_an_existing_file_stays_unless_forced(
    net: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = plan_file.read_bytes()
    command = ["plan", f"{net}:with_loss", "--budget", "70%", "-o", str(plan_file)]
    assert main(command) == 2
    assert plan_file.read_bytes() == before
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    assert plan_file.read_bytes() != before


def test_the_knee_of_the_frontier_is_a_budget(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", f"{net}:with_loss", "--budget", "knee", "--save", "0", "--json"])
    answer = json.loads(capsys.readouterr().out)
    if code == 0:
        assert answer["measured_peak_bytes"] <= answer["budget_bytes"] < answer["plain_peak_bytes"]
    else:
        assert code == 2 and "no knee" in answer["error"]["what"]


def test_an_infeasible_budget_is_a_no_with_the_smallest_peak(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{net}:with_loss", "--budget", "10KB", "--json"]) == 1
    seen = capsys.readouterr()
    error = json.loads(seen.out)["error"]
    assert error["type"] == "InfeasibleBudgetError"
    assert error["budget_bytes"] == 10 * 1024 < error["min_peak_bytes"]
    assert error["holders"]
    assert "smallest peak found" in seen.err
    assert "Traceback" not in seen.err


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "{net}:with_loss", "--budget", "lots"],
        ["plan", "{net}:with_loss", "--budget", "80%", "--profile", "missing.json"],
        ["plan", "{net}:with_loss", "--budget", "80%", "--save", "no.such.unit"],
        ["plan", "{net}:missing", "--budget", "80%"],
        ["plan", "{net}:no_model", "--budget", "80%"],
        ["plan", "{net}:constant", "--budget", "80%"],
        ["plan", "{net}:raises", "--budget", "80%"],
        ["plan", "missing.py:net", "--budget", "80%"],
        ["plan", "no_such_package_at_all:net", "--budget", "80%"],
        ["plan", "{net}", "--budget", "80%"],
        ["plan", "{net}:model_only", "--budget", "80%"],
        ["show", "missing.json"],
        ["show", "{net}"],
        ["check", "missing.json", "{net}:with_loss"],
        ["verify", "missing.json", "{net}:with_loss"],
        ["profile", "{net}:model_only"],
    ],
    ids=" ".join,
)
def test_wrong_usage_and_unreadable_files_exit_with_2(
    net: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(net=net) for part in command]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("planner: ")
    assert "Traceback" not in seen.err


def test_without_a_subcommand_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    seen = capsys.readouterr()
    assert "usage: planner" in seen.out + seen.err


@pytest.mark.parametrize("command", [["frobnicate"], ["plan", "a:b"]])
def test_unknown_arguments_exit_with_2(command: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(command)
    assert exit_info.value.code == 2


def test_show_prints_what_was_stored_without_torch(net: str, plan_file: Path) -> None:
    program = (
        "import sys\n"
        "from planner.cli import main\n"
        f"code = main(['show', {str(plan_file)!r}])\n"
        "sys.exit(code or int('torch' in sys.modules) * 9)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == str(planner.Plan.load(plan_file)).strip()


def test_show_json_gives_the_file_back(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(plan_file), "--json"]) == 0
    assert capsys.readouterr().out == plan_file.read_text()


def test_check_passes_and_then_names_the_changed_units(
    net: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(plan_file), f"{net}:with_loss"]) == 0
    assert main(["check", str(plan_file), f"{net}:model_only"]) == 0  # runs nothing
    capsys.readouterr()
    assert main(["check", str(plan_file), f"{net}:changed", "--json"]) == 1
    seen = capsys.readouterr()
    error = json.loads(seen.out)["error"]
    assert error["type"] == "StalePlanError"
    assert "0.0" in error["units"] and "0.1" not in error["units"]
    assert "0.0" in seen.err


def test_verify_says_whether_the_promises_held(
    net: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(plan_file), f"{net}:with_loss", "--repeats", "1", "--json"]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] and facts["gradients_equal"] and facts["outputs_equal"]
    assert facts["measured_peak_bytes"] <= facts["budget_bytes"] < facts["plain_peak_bytes"]


def test_verify_fails_when_the_peak_is_over_the_budget(
    net: str, plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planner.Plan.load(plan_file)
    dataclasses.replace(plan, budget_bytes=1024).save(plan_file, force=True)
    assert main(["verify", str(plan_file), f"{net}:with_loss", "--repeats", "1"]) == 1
    assert capsys.readouterr().out


def test_a_stored_profile_is_enough_to_plan(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", f"{net}:with_loss"]) == 0
    stored = list(Path("profiles").glob("*.json"))
    assert len(stored) == 1
    assert f"wrote {stored[0]}" in capsys.readouterr().err
    assert main(["plan", f"{net}:model_only", "--budget", "80%"]) == 0
    given = ["plan", f"{net}:model_only", "--budget", "80%", "--profile", str(stored[0])]
    assert main(given) == 0


def test_profile_with_output_and_json(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", f"{net}:with_loss", "-o", "p.json", "--json"]) == 0
    printed = capsys.readouterr().out
    assert printed == Path("p.json").read_text()
    assert planner.Profile.from_json(printed).plain_peak_bytes > 0
    assert main(["profile", f"{net}:with_loss", "-o", "p.json"]) == 2


def test_pins_reach_the_plan(net: str) -> None:
    pins = ["--save", "0", "--save", "1.*", "--recompute", "2"]
    command = ["plan", f"{net}:with_loss", "--budget", "95%", "-o", "plan.json", *pins]
    assert main(command) == 0
    plan = planner.Plan.load("plan.json")
    assert plan.pins.save == ("0", "1.*")
    assert plan.pins.recompute == ("2",)


def test_a_model_can_be_named_by_module(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "planner", "plan", "net_file:with_loss", "--budget", "80%"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # no terminal, so no progress bar
    assert run.stdout.strip()


def test_a_crash_shows_its_traceback_only_when_asked(
    net: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(planner, "plan", crash)
    command = ["plan", f"{net}:with_loss", "--budget", "80%"]
    assert main(command) == 3
    seen = capsys.readouterr().err
    assert "ZeroDivisionError: a bug of ours" in seen
    assert "Traceback" not in seen
    assert main([*command, "-v"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_the_demo_shows_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    seen = capsys.readouterr().out
    for row in ("plain step", "peak", "forward runs", "overhead", "equal, bit for bit"):
        assert row in seen


def test_the_demo_says_when_its_budget_cannot_be_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--budget", "1MB"]) == 1
    assert "smallest peak found" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "quiet", "shown"),
    [(Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)],
    ids=["terminal", "quiet", "no terminal"],
)
def test_stages_show_on_a_terminal_only(stream: io.StringIO, quiet: bool, shown: bool) -> None:
    with Console(quiet=quiet, err=stream).stages(1) as stage:
        stage("counting sheep")
    assert ("counting sheep" in stream.getvalue()) is shown
    assert bool(stream.getvalue()) is shown
