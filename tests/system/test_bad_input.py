"""Whatever is wrong with what a user gives, the error says so, and nothing is left half done."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import Net, small_net, untouched

import planner


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Small models are faster so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder, which is empty afterwards unless the test wrote there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)


@pytest.fixture(scope="module")
def profile() -> planner.Profile:
    """The small net's profile."""
    torch.set_num_threads(1)
    net, x = small_net()
    return planner.profile(net, inputs=(x,))


@pytest.fixture(scope="module")
def plan(profile: planner.Profile) -> planner.Plan:
    """A plan for the small net that recomputes."""
    net, _ = small_net()
    return planner.plan(net, budget_mb="65%", profile=profile)


def refused(
    kind: type[planner.PlannerError], call: Callable[[], object], *said: str
) -> planner.PlannerError:
    """Assert that a call raises this error, in full, with these words in it."""
    with pytest.raises(planner.PlannerError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    for part in ("what", "numbers", "cause", "fix"):
        assert getattr(error, part), f"no {part} in: {error}"
    for words in said:
        assert words in str(error), f"{words!r} not in: {error}"
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and vars(again).keys() == vars(error).keys()
    return error


# -- budgets and names -----------------------------------------------------------------------------

BUDGETS = [0, -1, 0.0, float("nan"), float("inf"), "", "0", "0%", "-5MB", "many", "3 apples", None]


@pytest.mark.parametrize("budget", [*BUDGETS, True, [300], "1e400MB", "300MB300"])
def test_budget_that_is_no_size(budget: Any) -> None:
    net, x = small_net()
    with untouched(net):
        refused(planner.InvalidBudgetError, lambda: planner.plan(net, budget_mb=budget, inputs=x))


def test_budget_below_the_floor(profile: planner.Profile) -> None:
    net, x = small_net()
    for how in ({"inputs": x}, {"profile": profile}):
        with untouched(net):
            error = refused(
                planner.InfeasibleBudgetError,
                lambda how=how: planner.plan(net, budget_mb=0.001, **how),
                "parameters",
                "B",
            )
        assert isinstance(error, planner.InfeasibleBudgetError)
        assert error.budget_bytes == 1048 < error.min_peak_bytes < profile.plain_peak_bytes
        assert error.holders and all(size > 0 for _, size in error.holders)
        assert sum(size for _, size in error.holders) <= error.min_peak_bytes
        met = planner.plan(net, budget_mb=f"{error.min_peak_bytes}B", **how)
        assert planner.verify(net, met, inputs=x, repeats=1).ok


@pytest.mark.parametrize("pin", ["save", "recompute"])
def test_pin_that_names_no_unit(pin: str, profile: planner.Profile) -> None:
    net, x = small_net()
    for how in ({"inputs": x}, {"profile": profile}):
        with untouched(net):
            error = refused(
                planner.UnknownUnitError,
                lambda how=how: planner.plan(net, budget_mb="65%", **how, **{pin: ["block.1"]}),
                "block.1",
            )
        assert isinstance(error, planner.UnknownUnitError)
        assert error.name == "block.1" and "blocks.1" in error.near


def test_pins_that_contradict_each_other(profile: planner.Profile) -> None:
    net, _ = small_net()
    with pytest.raises(planner.PlannerError, match=r"blocks\.1"):
        planner.plan(
            net, budget_mb="65%", profile=profile, save=["blocks.1"], recompute=["blocks.1"]
        )


def test_search_that_does_not_exist(profile: planner.Profile) -> None:
    net, _ = small_net()
    with pytest.raises(planner.PlannerError, match="unknown search method 'magic'"):
        planner.plan(net, budget_mb="65%", profile=profile, search="magic")


# -- models and inputs -----------------------------------------------------------------------------


class Raises(nn.Module):
    """A forward that raises after it counted the call and wrote a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Raise."""
        self.calls += 1
        self.seen += 1
        raise ValueError(f"cannot take {tuple(self.linear(x).shape)}")


CALLS = [planner.profile, lambda model, **how: planner.plan(model, budget_mb="65%", **how)]


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
@pytest.mark.parametrize(
    "model", [nn.ReLU(), nn.Sequential(), nn.Linear(32, 2).requires_grad_(False)]
)
def test_nothing_to_train(call: Callable[..., object], model: nn.Module) -> None:
    x = torch.ones(4, 32)
    with untouched(model):
        refused(planner.InvalidModelError, lambda: call(model, inputs=x))


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
def test_forward_that_raises(call: Callable[..., object]) -> None:
    model = Raises()
    with untouched(model):
        error = refused_step(lambda: call(model, inputs=torch.ones(2, 4)))
    assert "cannot take (2, 4)" in str(error)
    assert isinstance(error.__cause__, ValueError)
    net, _ = small_net()
    with untouched(net):
        refused_step(lambda: call(net, inputs=torch.ones(2, 33)))
        refused_step(lambda: call(net, inputs={"wrong": torch.ones(2, 32)}))


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
def test_loss_that_is_no_scalar(call: Callable[..., object]) -> None:
    net, x = small_net()
    with untouched(net):
        error = refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: out))
        assert "(256, 1)" in error.numbers
        refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: 3.0))
        refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: out.detach().sum()))
        refused_step(lambda: call(net, inputs=x, loss_fn=lambda out: out.nothing))


def test_own_step_that_raises_or_does_nothing() -> None:
    net, x = small_net()

    def fails(model: nn.Module) -> None:
        model(x).sum().backward()
        raise RuntimeError("out of patience")

    with untouched(net):
        error = refused_step(lambda: planner.plan(net, budget_mb="65%", step=fails))
    assert "out of patience" in str(error)
    with untouched(net), pytest.raises(planner.PlannerError):
        planner.plan(net, budget_mb="1KB", step=lambda model: None)


def refused_step(call: Callable[[], object]) -> planner.StepError:
    """Assert that a call raises a `StepError` that says what and what next."""
    with pytest.raises(planner.StepError) as caught:
        call()
    assert caught.value.what and caught.value.fix
    return caught.value


@pytest.mark.parametrize("call", CALLS, ids=["profile", "plan"])
def test_inputs_on_another_device(call: Callable[..., object]) -> None:
    net, x = small_net()
    with untouched(net):
        refused(
            planner.InvalidInputsError,
            lambda: call(net, inputs=x.to("meta")),
            "meta",
            "x.to('cpu')",
        )


@pytest.mark.parametrize("inputs", [[torch.ones(2, 32)], 3, "x", {1: torch.ones(2, 32)}])
def test_inputs_of_no_known_form(inputs: Any) -> None:
    net, _ = small_net()
    with untouched(net), pytest.raises(planner.InvalidInputsError) as caught:
        planner.plan(net, budget_mb="65%", inputs=inputs)
    assert caught.value.fix


@pytest.mark.parametrize("model", [Net, "net", None, 3])
def test_model_that_is_none(model: Any, plan: planner.Plan) -> None:
    x = torch.ones(2, 32)
    for call in (
        lambda: planner.plan(model, budget_mb=300, inputs=x),
        lambda: planner.profile(model, inputs=x),
        lambda: planner.apply(model, plan),
    ):
        with pytest.raises(planner.InvalidModelError) as caught:
            call()
        assert caught.value.fix


def test_literal_call_on_what_is_no_model() -> None:
    with pytest.raises(planner.InvalidModelError):
        planner.plan(Net, budget_mb=300)  # type: ignore[arg-type]


# -- documents -------------------------------------------------------------------------------------


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
