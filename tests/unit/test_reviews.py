"""Stored plans, reviewed from Python: page, trace, explanation, difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.analysis.stored_plan import graph_for, timeline
from planner.documents import Pins

PROFILES = Path(planner.__file__).parents[1] / "profiles"
PLAN, PROFILE = PROFILES / "gpt2.plan.json", PROFILES / "gpt2.json"


def test_the_page_is_returned_and_written(tmp_path: Path) -> None:
    short = planner.report(PLAN)
    page = planner.report(planner.Plan.load(PLAN), tmp_path / "plan.html", profile=PROFILE)
    assert len(short) < len(page) == len((tmp_path / "plan.html").read_text())
    with pytest.raises(planner.PlanFileExistsError):
        planner.report(PLAN, tmp_path / "plan.html")


def test_a_trace_shows_the_memory_of_both_steps(tmp_path: Path) -> None:
    planner.trace(PLAN, tmp_path / "trace.json", profile=PROFILE)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    profile, plan = planner.Profile.load(PROFILE), planner.Plan.load(PLAN)
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == [op.name for op in profile.ops]
    peaks = {
        name: max(sum(e["args"].values()) for e in events if e["name"] == f"{name} memory")
        for name in ("plain", "planned")
    }
    assert peaks == {"plain": plan.plain_peak_bytes, "planned": plan.predicted_peak_bytes}


def test_a_unit_is_explained_and_a_difference_printed() -> None:
    unit = planner.Plan.load(PLAN).segments[0].start.unit
    assert unit in str(planner.explain(PLAN, unit, profile=PROFILE))
    assert planner.diff(PLAN, PLAN).same
    assert "are the same" in str(planner.diff(PLAN, planner.Plan.load(PLAN)))
    other = planner.diff(PLAN, PROFILES / "bert.plan.json")
    assert not other.same and "different models" in str(other)


def test_pins_are_one_text_or_several() -> None:
    wanted = Pins(save=("blocks.*",), recompute=("a", "b"))
    assert Pins.of("blocks.*", ["a", "b"]) == wanted


def test_the_page_says_what_is_in_the_peak() -> None:
    profile, plan = planner.Profile.load(PROFILE), planner.Plan.load(PLAN)
    found = timeline(graph_for(plan, profile), plan)
    for line in (found.plain, found.planned):
        sizes = [held.bytes for held in line.holdings]
        assert sum(sizes) == line.peak_bytes and sizes == sorted(sizes, reverse=True)
    page = planner.report(plan, profile=profile)
    assert "What is in the peak" in page and "saved for its backward" in page
    assert "No profile was given" in planner.report(plan)
