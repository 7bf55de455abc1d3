"""`planner diff`: meaning first, the same text for the same plans, exit code 1 when they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from document_samples import MIB, PLAN, block_segment

from planner.analysis.diff import compare
from planner.analysis.diff_text import diff_text
from planner.cli import main
from planner.documents import Boundary, CustomOp, Exclusion, Pins, Plan, Segment

LAYERS = tuple(block_segment(f"h.{n}") for n in range(6))


def plan(*segments: Segment, **fields: object) -> Plan:
    """Return a plan with these segments."""
    return replace(PLAN, segments=segments, **fields)  # type: ignore[arg-type]


def test_equal_plans_are_the_same() -> None:
    diff = compare(PLAN, PLAN)
    assert diff.same and not (diff.units or diff.numbers or diff.others)
    assert diff_text(diff) == "The plans for Net are the same."


def test_measured_times_are_no_change_of_fate() -> None:
    slower = plan(*(replace(s, recompute_ns=2 * s.recompute_ns) for s in LAYERS))
    diff = compare(plan(*LAYERS), slower)
    assert not diff.same and not diff.units
    assert "only measured times differ" in diff_text(diff)


def test_units_that_are_recomputed_or_left_alone_are_named_as_layers() -> None:
    text = diff_text(compare(plan(*LAYERS[:4]), plan(*LAYERS[1:])))
    assert text.splitlines()[0] == "Plan for Net: 3 units changed fate"
    rows = [line.split() for line in text.splitlines()]
    assert any(row[:3] == ["h.0", "left", "alone"] for row in rows)
    assert "3.0 MiB -> 0 B  10 ops -> 0 ops" in text
    assert [row[0] for row in rows if "recomputed" in row] == ["h.{4-5}"]


def test_a_block_cut_in_two_is_one_change() -> None:
    parts = block_segment("h.0.attn"), block_segment("h.0.mlp")
    (change,) = compare(plan(*parts), plan(block_segment("h.0"))).units
    assert change.unit == "h.0"
    assert change.before and change.before.given_up_bytes == 6 * MIB
    assert change.after and change.after.given_up_bytes == 3 * MIB
    assert "gives up less" in diff_text(compare(plan(*parts), plan(block_segment("h.0"))))


def test_a_segment_over_all_blocks_takes_them_in() -> None:
    whole = Segment(Boundary("h.0", 0, "enter"), Boundary("h.5", 0, "exit"), saved_bytes=9 * MIB)
    diff = compare(plan(*LAYERS), plan(whole))
    assert {c.unit: c.around for c in diff.units} == {
        "h": None,
        **{f"h.{n}": "h" for n in range(6)},
    }
    assert "part of h" in diff_text(diff) and "left alone" not in diff_text(diff)


def test_other_keep_sets_of_equal_size_are_a_change() -> None:
    other = replace(LAYERS[0], keep=("h.0/relu/0",))
    diff = compare(plan(LAYERS[0]), plan(other))
    assert [c.unit for c in diff.units] == ["h.0"]
    assert "recomputed otherwise" in diff_text(diff)


def test_numbers_and_everything_else_come_with_both_values() -> None:
    after = replace(
        PLAN,
        budget_bytes=280 * MIB,
        predicted_overhead_ratio=0.25,
        measured_peak_bytes=None,
        fingerprint="ffff0000",
        exclusions=(Exclusion("norm", "writes its statistics"), Exclusion("", "compiled")),
        pins=Pins(save=("head",)),
        step=replace(PLAN.step, autocast="", inputs=PLAN.step.inputs[:1]),
    )
    text = diff_text(compare(PLAN, after))
    assert "the same units are recomputed" in text
    for line in (
        "budget              300.0 MiB -> 280.0 MiB (-20.0 MiB)",
        "predicted overhead  12.5% -> 25.0% (+12.5 points)",
        "measured peak       291.0 MiB -> none",
        "0123abcd -> ffff0000",
        "step autocast",
        "bfloat16 -> none",
        "step kwargs['mask']",
        "added: .: compiled",
        "removed: recompute h.0",
    ):
        assert line in text, text


def test_every_field_of_a_plan_is_compared() -> None:
    changed: dict[str, object] = {
        "schema_version": 2, "model_class": "Other", "fingerprint": "x", "budget_bytes": 1,
        "predicted_peak_bytes": 1, "predicted_overhead_ratio": 0.5, "plain_peak_bytes": 1,
        "floor_bytes": None, "solver": "x", "status": "manual", "gap": None,
        "measured_peak_bytes": 1, "segments": (), "exclusions": (), "pins": Pins(), "notes": (),
        "step": replace(PLAN.step, device="cuda"),
        "custom_ops": (CustomOp("lib::op", True, "registered"),),
        "units": (SimpleNamespace(units="h.*", count=2, fingerprint="x"),),
    }  # fmt: skip
    assert set(changed) == set(Plan.__dataclass_fields__)
    for name, value in changed.items():
        diff = compare(PLAN, replace(PLAN, **{name: value}))  # type: ignore[arg-type]
        assert diff.units or diff.numbers or diff.others, name
        assert diff_text(diff)


def test_the_unit_of_a_segment_holds_both_ends() -> None:
    ends = Boundary("h.1.attn", 0, "exit"), Boundary("h.1.mlp.fc", 0, "enter")
    assert Segment(*ends).unit == "h.1"
    assert Segment(Boundary("h.1", 0, "enter"), Boundary("h.10", 0, "exit")).unit == "h"
    assert Segment(Boundary("", 0, "enter"), Boundary("h", 0, "exit")).unit == ""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of two plans that differ."""
    for name, document in (("a.json", plan(*LAYERS)), ("b.json", plan(*LAYERS[:2]))):
        document.save(tmp_path / name)
    return str(tmp_path / "a.json"), str(tmp_path / "b.json")


def test_the_command_says_by_its_exit_code_whether_they_differ(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", files[0], files[0]]) == 0
    capsys.readouterr()
    assert main(["diff", *files]) == 1
    first = capsys.readouterr().out
    assert "h.{2-5}" in first
    assert main(["diff", *files]) == 1
    assert capsys.readouterr().out == first
    assert main(["diff", files[0], "missing.json"]) == 2


def test_the_command_prints_facts_as_json(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *files, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["same"] is False
    assert [u["unit"] for u in facts["units"]] == ["h.2", "h.3", "h.4", "h.5"]
    assert facts["units"][0]["after"] is None
    assert facts["units"][0]["before"]["given_up_bytes"] == 3 * MIB


def test_plans_for_different_models_are_said_to_be_that() -> None:
    text = diff_text(compare(PLAN, replace(PLAN, model_class="Other", budget_bytes=280 * MIB)))
    assert text.splitlines()[0] == "The plans are for different models: Net before, Other after"
    assert "budget  300.0 MiB -> 280.0 MiB" in text
