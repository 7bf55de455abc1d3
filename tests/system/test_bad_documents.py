"""Documents that are broken, missing, of another model, or cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import nn
from zoo import Net, small_net, untouched

import planner

pytestmark = pytest.mark.usefixtures("empty_folder")


def broken(text: str) -> dict[str, str]:
    """Return ways in which a document can be broken."""
    document = json.loads(text)
    without = {key: value for key, value in document.items() if key != "fingerprint"}
    return {
        "empty": "",
        "not JSON": "budget: 300\n",
        "truncated": text[: len(text) // 2],
        "a list": "[]",
        "of a later version": json.dumps({**document, "schema_version": 99}),
        "without a field": json.dumps(without),
        "a field too many": json.dumps({**document, "colour": "red"}),
        "a field of another type": json.dumps({**document, "plain_peak_bytes": "much"}),
    }


@pytest.mark.parametrize("how", list(broken('{"fingerprint": ""}')))
def test_broken_document(
    how: str, tmp_path: Path, plan: planner.Plan, profile: planner.Profile
) -> None:
    net, x = small_net()
    (tmp_path / "plan.json").write_text(broken(plan.to_json())[how])
    (tmp_path / "profile.json").write_text(broken(profile.to_json())[how])
    with untouched(net):
        for call in (
            lambda: planner.apply(net, "plan.json"),
            lambda: planner.verify(net, "plan.json", inputs=x),
            lambda: planner.Plan.load("plan.json"),
        ):
            document_refused(call, "plan.json")
        for call in (
            lambda: planner.plan(net, budget_mb="65%", profile="profile.json"),
            lambda: planner.load("profile.json"),
        ):
            document_refused(call, "profile.json")


def document_refused(call: Callable[[], object], path: str) -> None:
    """Assert that a call raises a `DocumentError` that names the file and what to do."""
    with pytest.raises(planner.DocumentError) as caught:
        call()
    assert path in caught.value.what or path in caught.value.path
    assert caught.value.what and caught.value.fix


def test_document_of_the_other_kind(
    tmp_path: Path, plan: planner.Plan, profile: planner.Profile
) -> None:
    net, _ = small_net()
    plan.save("plan.json")
    profile.save("profile.json")
    document_refused(lambda: planner.apply(net, "profile.json"), "profile.json")
    document_refused(lambda: planner.plan(net, budget_mb=300, profile="plan.json"), "plan.json")


def test_missing_file() -> None:
    net, x = small_net()
    for call in (
        lambda: planner.apply(net, "nowhere.json"),
        lambda: planner.verify(net, "nowhere.json", inputs=x),
        lambda: planner.plan(net, budget_mb=300, profile="nowhere.json"),
        lambda: planner.load("nowhere.json"),
    ):
        refused(planner.DocumentError, call, "nowhere.json", "No such file")


def test_damaged_stored_profile_is_passed_over(tmp_path: Path, profile: planner.Profile) -> None:
    net, _ = small_net()
    (tmp_path / "profiles").mkdir()
    text = profile.to_json()
    (tmp_path / "profiles" / "net2.json").write_text(text[: len(text) // 2])
    with pytest.raises(planner.ProfileNotFoundError):
        planner.plan(net, budget_mb="65%")
    (tmp_path / "profiles" / "net1.json").write_text(text)
    assert planner.plan(net, budget_mb="65%").segments


def test_plan_for_another_model(plan: planner.Plan) -> None:
    for other in (Net(blocks=3), Net(width=16), nn.Linear(32, 1)):
        with untouched(other):
            error = refused(planner.StalePlanError, lambda other=other: planner.apply(other, plan))
            with pytest.raises(planner.StalePlanError):
                planner.verify(other, plan, inputs=torch.ones(4, other_features(other)))
        assert isinstance(error, planner.StalePlanError)
    missing = replace(plan, fingerprint="")
    error = refused(planner.StalePlanError, lambda: planner.apply(nn.Linear(32, 1), missing))
    assert isinstance(error, planner.StalePlanError) and error.units


def other_features(model: nn.Module) -> int:
    """Return the width that a model takes."""
    linear = next(m for m in model.modules() if isinstance(m, nn.Linear))
    return linear.in_features


def test_profile_of_another_model(profile: planner.Profile) -> None:
    other = Net(blocks=3)
    with untouched(other):
        refused(
            planner.StalePlanError,
            lambda: planner.plan(other, budget_mb=300, profile=profile),
            profile.fingerprint,
        )


def test_profile_of_other_shapes(profile: planner.Profile) -> None:
    net, _ = small_net()
    twice = torch.randn(512, 32)
    with untouched(net):
        refused(
            planner.StalePlanError,
            lambda: planner.plan(net, budget_mb="65%", profile=profile, inputs=twice),
            "256",
            "512",
        )


def test_profile_without_the_optimizer(profile: planner.Profile) -> None:
    net, _ = small_net()
    optimizer = torch.optim.AdamW(net.parameters())
    with untouched(net, optimizer):
        refused(
            planner.StalePlanError,
            lambda: planner.plan(net, budget_mb="65%", profile=profile, optimizer=optimizer),
            "AdamW",
        )


def test_plan_applied_twice(plan: planner.Plan) -> None:
    net, _ = small_net()
    with planner.apply(net, plan), pytest.raises(planner.InvalidModelError) as caught:
        planner.apply(net, plan)
    assert "remove()" in caught.value.fix
    planner.apply(net, plan).remove()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_folder_that_is_read_only(tmp_path: Path, plan: planner.Plan) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(0o555)
    refused(planner.DocumentError, lambda: plan.save(folder / "plan.json"), "plan.json")
    folder.chmod(0o755)
    assert not list(folder.iterdir())


def test_folder_that_refuses_a_new_file(
    tmp_path: Path, plan: planner.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, mode: str = "r", **how: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("planner.documents.files.open", refuse, raising=False)
    refused(planner.DocumentError, lambda: plan.save("plan.json"), "Permission denied", "folder")
    assert not list(tmp_path.iterdir())


def test_write_that_fails_leaves_nothing(
    tmp_path: Path, plan: planner.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old\n")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    refused(planner.DocumentError, lambda: plan.save(target, force=True), "No space left")
    assert target.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_folder_that_is_missing_and_file_that_exists(tmp_path: Path, plan: planner.Plan) -> None:
    refused(planner.DocumentError, lambda: plan.save("missing/plan.json"), "mkdir -p missing")
    plan.save("plan.json")
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(planner.PlanFileExistsError, match="plan.json") as caught:
        plan.save("plan.json")
    assert "force" in caught.value.fix
    assert (tmp_path / "plan.json").read_bytes() == before
