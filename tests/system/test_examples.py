"""The stored example profiles and plans: they load, fit their models and keep their promises.

When one of these fails after a change of the file format, the fingerprint or the search:
`python scripts/make_examples.py`.
"""

from __future__ import annotations

import importlib.util
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from daily import nightly_but

import planner
from planner.analysis.explain import explain
from planner.analysis.stored_plan import replayed_spans
from planner.cli import main
from planner.graph import Graph, simulate
from planner.reviews import report

ROOT = Path(planner.__file__).parent.parent
FOLDER, SCRIPT = ROOT / "profiles", ROOT / "scripts" / "make_examples.py"
NAMES = ("bert", "gpt2", "llama", "resnet", "t5", "vit")
EACH = pytest.mark.parametrize("name", NAMES)
FEW = pytest.mark.parametrize("name", nightly_but(("gpt2", "resnet"), NAMES))
MOST_BYTES = 300_000


def documents(name: str) -> tuple[planner.Profile, planner.Plan]:
    """Return the stored profile and plan of a model."""
    return (
        planner.Profile.load(FOLDER / f"{name}.json"),
        planner.Plan.load(FOLDER / f"{name}.plan.json"),
    )


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script that makes them."""
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("make_examples", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_of_the_script_is_stored(script: ModuleType) -> None:
    assert sorted(script.MODELS) == sorted(NAMES)
    stored = {path.name for path in FOLDER.glob("*.json")}
    assert {f"{n}.json" for n in NAMES} | {f"{n}.plan.json" for n in NAMES} <= stored


@EACH
def test_documents_are_small_and_written_as_we_would(name: str) -> None:
    for path, document in zip(
        (FOLDER / f"{name}.json", FOLDER / f"{name}.plan.json"), documents(name), strict=True
    ):
        assert path.stat().st_size < MOST_BYTES
        assert path.read_text() == document.to_json()


@EACH
def test_the_simulator_still_plays_what_the_plan_promises(name: str) -> None:
    profile, plan = documents(name)
    graph = Graph.of(profile)
    assert plan.fingerprint == profile.fingerprint
    assert simulate(graph, ()).peak_bytes == profile.plain_peak_bytes == plan.plain_peak_bytes
    played = simulate(graph, replayed_spans(graph, plan))
    assert played.peak_bytes == plan.predicted_peak_bytes <= plan.budget_bytes
    assert plan.measured_peak_bytes is not None
    assert plan.measured_peak_bytes <= plan.budget_bytes
    ratio = played.overhead_ns / profile.step_time_ns
    assert plan.predicted_overhead_ratio == pytest.approx(ratio, abs=1e-6)


@FEW
def test_the_search_still_finds_a_plan_that_is_no_dearer(name: str) -> None:
    profile, plan = documents(name)
    (point,) = planner.sweep(profile, [plan.budget_bytes / 1024**2], baselines=False).points
    assert point.peak_bytes <= plan.budget_bytes
    assert point.overhead_ratio <= plan.predicted_overhead_ratio * 1.1


@FEW
def test_every_example_can_be_reported_and_explained(name: str) -> None:
    profile, plan = documents(name)
    page = report(plan, profile=profile)
    HTMLParser().feed(page)
    assert page.count("<svg") == 3 and len(page.encode()) < 1_000_000
    graph = Graph.of(profile)
    whole = explain(graph, plan, ".")
    assert len(whole.segments) == sum(s.runtime == "replay" for s in plan.segments)
    entered = next(s.start.unit for s in plan.segments if s.start.edge == "enter")
    assert explain(graph, plan, entered or ".").segments


@EACH
def test_the_plan_still_fits_the_model(
    name: str, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = FOLDER / f"{name}.plan.json"
    assert main(["check", str(plan), f"{SCRIPT}:{name}"]) == 0, capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_the_plan_still_holds(name: str, script: ModuleType) -> None:
    _, plan = documents(name)
    model, inputs = script.MODELS[name]()
    found = planner.verify(model, plan, inputs=inputs, repeats=1)
    assert found.ok, str(found)
    assert found.measured_peak_bytes <= plan.budget_bytes


def test_one_example_can_be_made_alone(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["--only", "vit", "--output", str(tmp_path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vit.json", "vit.plan.json"]
    again = planner.Profile.load(tmp_path / "vit.json")
    stored, _ = documents("vit")
    assert again.fingerprint == stored.fingerprint
    assert [s.bytes for s in again.storages] == [s.bytes for s in stored.storages]
