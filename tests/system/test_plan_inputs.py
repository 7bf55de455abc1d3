"""Where `plan` takes inputs from when the caller gives some or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from zoo import (
    ZOO,
    small_net,
)

import planner

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_literal_call_takes_the_stored_profile(tmp_path: Path) -> None:
    net, x = small_net()
    (tmp_path / "profiles").mkdir()
    profile = planner.profile(net, inputs=(x,))
    profile.save(tmp_path / "profiles" / "net.json")
    plan = planner.plan(net, budget_mb=300)
    assert plan.status == "empty" and plan.plain_peak_bytes == profile.plain_peak_bytes
    tight = planner.plan(net, budget_mb="65%")
    verified = planner.verify(net, tight, inputs=(x,), repeats=1)
    assert verified.ok and tight.segments
    assert tight.predicted_peak_bytes == verified.measured_peak_bytes


def test_working_folder_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = small_net()
    for folder, rows in (("elsewhere", 64), ("profiles", 128)):
        (tmp_path / folder).mkdir()
        planner.profile(net, inputs=(x[:rows],)).save(tmp_path / folder / "net.json")
        monkeypatch.setenv("PLANNER_PROFILES", str(tmp_path / "elsewhere"))
        plan = planner.plan(net, budget_mb="65%")
        assert plan.step.inputs[0].shape == (rows, 32)


def test_given_inputs_come_before_a_stored_profile(tmp_path: Path) -> None:
    net, x = small_net()
    (tmp_path / "profiles").mkdir()
    planner.profile(net, inputs=(x[:64],)).save(tmp_path / "profiles" / "net.json")
    assert planner.plan(net, budget_mb="65%", inputs=(x,)).step.inputs[0].shape == (256, 32)


def test_literal_call_takes_what_the_model_declares() -> None:
    net, x = small_net()
    net.example_input_array = x
    plan = planner.plan(net, budget_mb="65%")
    assert plan.segments and plan.step.inputs[0].shape == (256, 32)
    assert plan.measured_peak_bytes is not None  # it could run, so it was measured
    gpt2, _ = ZOO["gpt2"].build()
    assert planner.plan(gpt2, budget_mb=300).status == "empty"


def test_literal_call_without_either_says_what_to_do() -> None:
    net, _ = small_net()
    with pytest.raises(planner.ProfileNotFoundError) as caught:
        planner.plan(net, budget_mb=300)
    error = caught.value
    assert error.what and error.numbers and error.cause
    assert "python scripts/profile_model.py path/file.py:build" in error.fix
    assert "planner.plan(model, budget_mb=..., inputs=(x,))" in error.fix


@pytest.mark.parametrize(
    "wrap",
    [lambda x: x, lambda x: (x,), lambda x: {"x": x}, lambda x: lambda: ((x,), {})],
    ids=["tensor", "tuple", "dict", "callable"],
)
def test_inputs_in_any_form(wrap: Callable[[Tensor], Any]) -> None:
    net, x = small_net()
    plan = planner.plan(net, budget_mb="70%", inputs=wrap(x))
    assert plan.segments and plan.measured_peak_bytes <= plan.budget_bytes
