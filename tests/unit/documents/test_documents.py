"""Plans and profiles as files: what is written, what is read back, what is refused."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
from document_samples import DOCUMENTS, PLAN, PROFILE, SCHEMAS, Document, name_of, validator

import planner
from planner.documents import (
    Op,
    Plan,
    Profile,
    SavedTensor,
    Segment,
    Storage,
    TensorSpec,
    UnitCall,
    Value,
    files,
    load,
    text,
)
from planner.documents.fields import is_added
from planner.documents.wire import schema
from planner.errors import DocumentError

# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_text_and_back(document: Document) -> None:
    again = type(document).from_json(document.to_json())
    assert again == document
    assert again.to_json() == document.to_json()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
@pytest.mark.parametrize("as_path", [str, Path])
def test_file_and_back(document: Document, as_path: Callable[[Path], Any], tmp_path: Path) -> None:
    path = as_path(tmp_path / "document.json")
    document.save(path)
    assert type(document).load(path) == document
    assert load(path) == document
    assert planner.load(path) == document


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_documents_are_immutable_hashable_and_picklable(document: Document) -> None:
    assert pickle.loads(pickle.dumps(document)) == document
    assert hash(document) == hash(copy.deepcopy(document))
    with pytest.raises(FrozenInstanceError):
        document.fingerprint = "other"  # type: ignore[misc]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_text_is_plain_json_that_starts_with_what_it_is(document: Document) -> None:
    written = document.to_json()
    assert list(json.loads(written))[:2] == ["kind", "schema_version"]
    assert written.startswith("{\n  ") and written.endswith("}\n")
    assert written.isascii() and not any(line.endswith(" ") for line in written.splitlines())


def test_a_plan_is_indented_by_two_spaces() -> None:
    assert PLAN.to_json() == json.dumps(json.loads(PLAN.to_json()), indent=2) + "\n"


def test_a_profile_has_one_row_a_line() -> None:
    lines = [line.strip().rstrip(",") for line in PROFILE.to_json().splitlines()]
    assert '["aten.mm.default", 1, "forward", [0, 1], [2], 1000, 64, true, false]' in lines


def test_the_order_of_keys_in_the_file_does_not_matter() -> None:
    content = json.loads(PLAN.to_json())
    shuffled = {key: content[key] for key in sorted(content, reverse=True)}
    assert Plan.from_json(json.dumps(shuffled)) == PLAN


def test_files_touched_by_other_tools_still_load(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xef\xbb\xbf" + PLAN.to_json().replace("\n", "\r\n").encode())
    assert Plan.load(path) == PLAN


def test_names_outside_ascii_survive(tmp_path: Path) -> None:
    plan = replace(PLAN, notes=("größer \u2028 \ud800 \x1b[2J \U0001f40d",))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def big_profile(ops: int) -> Profile:
    return replace(
        PROFILE,
        units=(UnitCall("", 0, 0, "Net", -1, 0, ops),),
        ops=tuple(
            Op("aten.addmm.default", 0, "forward", (i, max(0, i - 1)), (i,), 123_456, 10**9)
            for i in range(ops)
        ),
        values=tuple(Value(i, 0, i) for i in range(ops)),
        storages=tuple(Storage(10**7, "activation", i, ops, i) for i in range(ops)),
        saved=tuple(SavedTensor(i, i, -1) for i in range(ops)),
    )


def test_a_profile_of_3000_ops_is_small_and_quick() -> None:
    profile = big_profile(3000)
    began = time.perf_counter()
    written = profile.to_json()  # reads its own text once
    assert Profile.from_json(written) == profile
    assert len(written) < 1_000_000
    assert time.perf_counter() - began < 5  # about 0.3 s; loose, as test machines are busy


def test_loading_a_plan_imports_neither_torch_nor_jsonschema(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    program = (
        "import sys, planner\n"
        "print(planner.load(sys.argv[1]), planner.Plan)\n"
        "sys.exit(bool({'torch', 'jsonschema', 'networkx', 'scipy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path / "plan.json")], text=True)
    assert run.returncode == 0


def test_reprs_are_one_short_line_however_large_the_document() -> None:
    plan, profile = repr(PLAN), repr(big_profile(1000))
    assert plan == "<Plan for Net: 3 segments, peak 290.0 MiB, budget 300.0 MiB>"
    assert profile == "<Profile of Net: 1,000 ops, peak 9.0 MiB, step 4.00 us>"


# ---------------------------------------------------------------- schema


@pytest.mark.parametrize("document", [*DOCUMENTS, big_profile(5)], ids=name_of)
def test_the_shipped_schema_accepts_what_we_write(document: Document) -> None:
    validator(document).validate(json.loads(document.to_json()))


def test_the_schemas_name_every_column_and_key() -> None:
    schema = json.loads((SCHEMAS / "profile.schema.json").read_text())
    for kind in (UnitCall, Op, Value, Storage, SavedTensor):
        columns = schema["$defs"][f"{kind.__name__}Table"]["properties"]["columns"]["const"]
        assert columns == [field.name for field in fields(kind)]
    schema = json.loads((SCHEMAS / "plan.schema.json").read_text())
    assert set(schema["properties"]) - {"kind"} == {field.name for field in fields(Plan)}
    left_out = {field.name for field in fields(Plan) if is_added(field)}
    assert set(schema["properties"]) - set(schema["required"]) == left_out
    assert schema["$defs"]["Segment"]["required"] == [field.name for field in fields(Segment)]


@pytest.mark.parametrize("kind", [Plan, Profile])
def test_the_shipped_schemas_are_those_of_the_classes(kind: type[Document]) -> None:
    """``python scripts/make_schemas.py`` writes them."""
    shipped = json.loads((SCHEMAS / f"{kind.__name__.lower()}.schema.json").read_text())
    assert shipped == json.loads(json.dumps(schema(kind)))


def test_the_schemas_say_what_each_field_is() -> None:
    properties = schema(Plan)["properties"]
    assert properties["budget_bytes"]["description"] == "most live bytes that were allowed"
    assert all("description" in properties[field.name] for field in fields(Plan))


# ---------------------------------------------------------------- refused text


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "line 1, column 1"),
        ("{", "line 1"),
        ("[]", "wanted an object"),
        ("3", "wanted an object"),
        ('{"kind": "planner.plan", "kind": "planner.plan"}', "the key 'kind' twice"),
        (PLAN.to_json().replace("0.125", "NaN"), "NaN"),
        (PLAN.to_json().replace("0.125", "-Infinity"), "-Infinity"),
        (PLAN.to_json().replace("0.125", "1e999"), "predicted_overhead_ratio"),
        (PLAN.to_json().replace("0.125", "1" * 10_000), "integer of 10000 digits"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 200_000, "nested too deep"),
        ("[" * 200_000 + "]" * 200_000, "nested too deep"),
        ("<<<<<<< ours\n" + PLAN.to_json(), "merge conflict"),
    ],
)
def test_text_that_is_no_document(written: str, message: str) -> None:
    for kind in (Plan, Profile):
        with pytest.raises(DocumentError) as raised:
            kind.from_json(written)
        assert len(str(raised.value)) < 1000
    with pytest.raises(DocumentError) as raised:
        Plan.from_json(written)
    assert message in str(raised.value)


def test_bytes_are_no_text() -> None:
    with pytest.raises(DocumentError, match="found bytes"):
        Plan.from_json(PLAN.to_json().encode())  # type: ignore[arg-type]


def test_a_text_over_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    monkeypatch.setattr(text, "MAX_TEXT_BYTES", 100)
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 100)
    with pytest.raises(DocumentError, match="at most 100"):
        Plan.from_json(" " * 101)
    with pytest.raises(DocumentError, match="more than 100 bytes"):
        load(tmp_path / "plan.json")


# ---------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    ("document", "field", "value"),
    [
        (PLAN, "predicted_overhead_ratio", math.nan),
        (PLAN, "gap", math.inf),
        (PLAN, "budget_bytes", -1),
        (PLAN, "budget_bytes", True),
        (PLAN, "budget_bytes", 2.0),
        (PLAN, "status", "good"),
        (PLAN, "notes", (b"bytes",)),
        (PLAN, "notes", "text"),
        (PLAN, "schema_version", 2),
        (PROFILE, "step_time_ns", 1.5),
        (PROFILE, "plain_peak_bytes", math.nan),
        (PROFILE, "fingerprint", object()),
        (PROFILE, "values", ()),
    ],
)
def test_a_document_that_could_not_be_read_back_is_not_written(
    document: Document, field: str, value: Any, tmp_path: Path
) -> None:
    document = replace(document, **{field: value})
    with pytest.raises(DocumentError):
        document.save(tmp_path / "d.json")
    assert list(tmp_path.iterdir()) == []


def test_shapes_are_tuples_after_reading() -> None:
    assert Plan.from_json(PLAN.to_json()).step.inputs[0] == TensorSpec("args[0]", (8, 128), "int64")
