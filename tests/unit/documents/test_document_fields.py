"""What is refused inside a document: the field at fault is named, and the schema agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from document_samples import PLAN, PROFILE, Document, validator

from planner.documents import (
    Plan,
)
from planner.errors import DocumentError

DELETE = object()
Broken = tuple[tuple[str | int, ...], object, str]

BROKEN_PLANS: list[Broken] = [
    (("budget_bytes",), True, "budget_bytes"),
    (("budget_bytes",), -1, "budget_bytes"),
    (("budget_bytes",), 1.5, "budget_bytes"),
    (("budget_bytes",), "300", "budget_bytes"),
    (("budget_bytes",), None, "budget_bytes"),
    (("budget_bytes",), 2**63, "budget_bytes"),
    (("floor_bytes",), False, "floor_bytes"),
    (("gap",), True, "gap"),
    (("gap",), -0.5, "gap"),
    (("predicted_overhead_ratio",), None, "predicted_overhead_ratio"),
    (("predicted_overhead_ratio",), "1", "predicted_overhead_ratio"),
    (("status",), "great", "status"),
    (("status",), ["optimal"], "status"),
    (("kind",), "planner.report", "kind"),
    (("kind",), ["planner.plan"], "kind"),
    (("kind",), DELETE, "kind"),
    (("schema_version",), DELETE, "schema_version"),
    (("schema_version",), 2, "schema_version"),
    (("schema_version",), 0, "schema_version"),
    (("schema_version",), "1", "schema_version"),
    (("schema_version",), True, "schema_version"),
    (("notes",), "text", "notes"),
    (("notes", 0), 1, "notes[0]"),
    (("solver",), DELETE, ""),
    (("extra",), 1, ""),
    (("segments",), {}, "segments"),
    (("segments", 0), [], "segments[0]"),
    (("segments", 1, "start", "edge"), "inside", "segments[1].start.edge"),
    (("segments", 1, "end", "call"), -2, "segments[1].end.call"),
    (("segments", 1, "end", "unit"), None, "segments[1].end.unit"),
    (("segments", 0, "runtime"), "magic", "segments[0].runtime"),
    (("segments", 0, "keep", 1), 7, "segments[0].keep[1]"),
    (("segments", 0, "kept_bytes"), -1, "segments[0].kept_bytes"),
    (("segments", 0, "note"), "?", "segments[0]"),
    (("segments", 2, "cuts", 1, "depth"), 0, "segments[2].cuts[1].depth"),
    (("step", "inputs", 0, "shape", 1), -1, "step.inputs[0].shape[1]"),
    (("step", "inputs", 0, "shape", 1), True, "step.inputs[0].shape[1]"),
    (("step", "inputs", 0, "shape"), 4, "step.inputs[0].shape"),
    (("step", "device"), DELETE, "step"),
    (("pins", "save"), None, "pins.save"),
    (("exclusions", 0, "reason"), 0, "exclusions[0].reason"),
]

BROKEN_PROFILES: list[Broken] = [
    (("units", "columns", 0), "nom", "units.columns"),
    (("units", "rows"), {}, "units.rows"),
    (("units", "rows", 0, 4), -2, "units.rows[0].parent"),
    (("units", "rows", 0, 3), 3, "units.rows[0].kind"),
    (("ops", "rows", 0), [], "ops.rows[0]"),
    (("ops", "rows", 0, 2), "sideways", "ops.rows[0].phase"),
    (("ops", "rows", 1, 3), 5, "ops.rows[1].inputs"),
    (("ops", "rows", 1, 3), [True], "ops.rows[1].inputs[0]"),
    (("ops", "rows", 1, 4), [-1], "ops.rows[1].outputs[0]"),
    (("ops", "rows", 1, 5), -1, "ops.rows[1].time_ns"),
    (("ops", "rows", 1, 7), 1, "ops.rows[1].replayable"),
    (("values", "rows", 0, 1), -1, "values.rows[0].version"),
    (("storages", "rows", 0, 0), -1, "storages.rows[0].bytes"),
    (("storages", "rows", 0, 0), True, "storages.rows[0].bytes"),
    (("storages", "rows", 0, 1), "stack", "storages.rows[0].category"),
    (("saved", "rows", 0, 2), -2, "saved.rows[0].unpacked_at"),
    (("plain_peak_bytes",), None, "plain_peak_bytes"),
    (("saved",), DELETE, ""),
    (("excluded", 0), "norm", "excluded[0]"),
]

# What a schema cannot say: indices that point past the end, or lives that end before they begin.
DANGLING_PROFILES: list[Broken] = [
    (("units", "rows", 0, 4), 0, "units.rows[0].parent"),
    (("units", "rows", 1, 4), 1, "units.rows[1].parent"),
    (("units", "rows", 0, 5), 3, "units.rows[0].exit"),
    (("units", "rows", 0, 6), 4, "units.rows[0].exit"),
    (("ops", "rows", 0, 1), 2, "ops.rows[0].unit"),
    (("ops", "rows", 1, 3), [0, 4], "ops.rows[1].inputs[1]"),
    (("values", "rows", 0, 0), 4, "values.rows[0].storage"),
    (("values", "rows", 0, 2), 3, "values.rows[0].op"),
    (("storages", "rows", 2, 2), 3, "storages.rows[2].birth"),
    (("storages", "rows", 2, 3), 4, "storages.rows[2].death"),
    (("storages", "rows", 3, 3), 1, "storages.rows[3].death"),
    (("storages", "rows", 3, 4), 1, "storages.rows[3].natural_death"),
    (("saved", "rows", 0, 0), 4, "saved.rows[0].value"),
    (("saved", "rows", 0, 1), 4, "saved.rows[0].packed_at"),
    (("saved", "rows", 0, 2), 4, "saved.rows[0].unpacked_at"),
]


def broken(document: Document, path: tuple[str | int, ...], value: object) -> Any:
    content = json.loads(document.to_json())
    place = content
    for key in path[:-1]:
        place = place[key]
    if value is DELETE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return content


Case = tuple[Document, tuple[str | int, ...], object, str]
SCHEMA_CASES: list[Case] = [(PLAN, *case) for case in BROKEN_PLANS]
SCHEMA_CASES += [(PROFILE, *case) for case in BROKEN_PROFILES]
ALL_CASES = SCHEMA_CASES + [(PROFILE, *case) for case in DANGLING_PROFILES]


@pytest.mark.parametrize(("document", "path", "value", "field"), ALL_CASES)
def test_a_broken_field_is_named(
    document: Document, path: tuple[str | int, ...], value: object, field: str
) -> None:
    with pytest.raises(DocumentError) as raised:
        type(document).from_json(json.dumps(broken(document, path, value)))
    error = raised.value
    assert error.field == field and field in error.what
    assert error.numbers.startswith("found ") and "wanted " in error.numbers
    assert error.cause and error.fix


@pytest.mark.parametrize(("document", "path", "value", "field"), SCHEMA_CASES)
def test_the_schema_refuses_it_too(
    document: Document, path: tuple[str | int, ...], value: object, field: str
) -> None:
    assert not validator(document).is_valid(broken(document, path, value))


def test_missing_and_unknown_keys_are_named() -> None:
    with pytest.raises(DocumentError, match=r"found no solver"):
        Plan.from_json(json.dumps(broken(PLAN, ("solver",), DELETE)))
    with pytest.raises(DocumentError, match=r"unknown key 'extra'"):
        Plan.from_json(json.dumps(broken(PLAN, ("extra",), 1)))


@pytest.mark.parametrize("key", [".0", "step.0", "[0]", " - at `$.step", "` - at `$[0]`"])
def test_an_unknown_key_may_look_like_a_place(key: str) -> None:
    for path in ((key,), ("step", key)):
        with pytest.raises(DocumentError) as raised:
            Plan.from_json(json.dumps(broken(PLAN, path, 1)))
        assert (raised.value.field, f"unknown key {key!r}" in raised.value.numbers) == (
            ".".join(path[:-1]),
            True,
        )


def test_a_file_from_the_future_tells_both_versions_and_the_way_out() -> None:
    with pytest.raises(DocumentError) as raised:
        Plan.from_json(json.dumps({**json.loads(PLAN.to_json()), "schema_version": 7, "new": 1}))
    assert raised.value.numbers == "found schema_version 7, wanted schema_version 1 or older"
    assert "upgrade planner" in raised.value.fix


def test_the_other_kind_of_document_says_so(tmp_path: Path) -> None:
    PROFILE.save(tmp_path / "p.json")
    with pytest.raises(DocumentError) as raised:
        Plan.load(tmp_path / "p.json")
    assert raised.value.numbers == "found 'planner.profile', wanted planner.plan"
    assert "planner.load" in raised.value.fix
