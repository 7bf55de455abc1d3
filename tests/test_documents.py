"""Plans and profiles as files: what is written, what is read back, what is refused."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from document_samples import EMPTY_PLAN, PLAN, PROFILE

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
from planner.errors import DocumentError, PlanFileExistsError

Document = Plan | Profile
DOCUMENTS = [PLAN, EMPTY_PLAN, PROFILE]
SCHEMAS = Path(planner.__file__).parent / "documents" / "schema"


def name_of(document: Document) -> str:
    return type(document).__name__


def validator(document: Document) -> Any:
    path = SCHEMAS / f"{name_of(document).lower()}.schema.json"
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


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


# ---------------------------------------------------------------- schema


@pytest.mark.parametrize("document", [*DOCUMENTS, big_profile(5)], ids=name_of)
def test_the_shipped_schema_accepts_what_we_write(document: Document) -> None:
    validator(document).validate(json.loads(document.to_json()))


def test_the_schemas_name_every_column_and_key() -> None:
    schema = json.loads((SCHEMAS / "profile.schema.json").read_text())
    for table, kind in (("units", UnitCall), ("ops", Op), ("values", Value)):
        columns = schema["properties"][table]["properties"]["columns"]["const"]
        assert columns == [field.name for field in fields(kind)]
    schema = json.loads((SCHEMAS / "plan.schema.json").read_text())
    assert set(schema["required"]) - {"kind"} == {field.name for field in fields(Plan)}
    assert schema["$defs"]["segment"]["required"] == [field.name for field in fields(Segment)]


# ---------------------------------------------------------------- refused fields

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
    (("segments", 1, "end", "call"), -1, "segments[1].end.call"),
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
    "document",
    [
        replace(PLAN, predicted_overhead_ratio=math.nan),
        replace(PLAN, gap=math.inf),
        replace(PLAN, budget_bytes=-1),
        replace(PLAN, budget_bytes=True),
        replace(PLAN, budget_bytes=2.0),  # type: ignore[arg-type]
        replace(PLAN, status="good"),
        replace(PLAN, notes=(b"bytes",)),  # type: ignore[arg-type]
        replace(PLAN, notes="text"),  # type: ignore[arg-type]
        replace(PLAN, schema_version=2),
        replace(PROFILE, step_time_ns=1.5),  # type: ignore[arg-type]
        replace(PROFILE, plain_peak_bytes=math.nan),  # type: ignore[arg-type]
        replace(PROFILE, fingerprint=object()),  # type: ignore[arg-type]
        replace(PROFILE, values=()),
    ],
    ids=repr,
)
def test_a_document_that_could_not_be_read_back_is_not_written(
    document: Document, tmp_path: Path
) -> None:
    with pytest.raises(DocumentError):
        document.save(tmp_path / "d.json")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- files


def test_an_existing_file_stays_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    with pytest.raises(PlanFileExistsError) as raised:
        PLAN.save(path)
    assert raised.value.path == str(path) and "force" in raised.value.fix
    assert path.read_text() == "mine"
    PLAN.save(path, force=True)
    assert Plan.load(path) == PLAN
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(DocumentError, match="No space left on device"):
        PLAN.save(path, force=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        PLAN.save(path, force=True)
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "old"


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as raised:
        PLAN.save(tmp_path / "no" / "such" / "plan.json")
    assert raised.value.numbers == "No such file or directory"
    assert f"mkdir -p {tmp_path / 'no' / 'such'}" in raised.value.fix
    assert raised.value.path.endswith("plan.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DocumentError, match="Permission denied"):
        PLAN.save(tmp_path / "plan.json")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody may write to")
def test_a_folder_nobody_may_write_to() -> None:
    with pytest.raises(DocumentError, match="cannot write /proc/plan.json"):
        PLAN.save("/proc/plan.json")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "\ud800", "."])
@pytest.mark.parametrize("force", [False, True])
def test_paths_that_cannot_be(
    path: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((DocumentError, PlanFileExistsError)):
        PLAN.save(path, force=force)
    with pytest.raises(DocumentError):
        load(path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_as_long_as_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    PLAN.save(path)
    assert load(path) == PLAN


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "plan.json"
    link.symlink_to(tmp_path / "real" / "plan.json")
    PLAN.save(link)  # the link's target does not exist yet
    replace(PLAN, solver="other").save(link, force=True)
    assert link.is_symlink()
    assert Plan.load(tmp_path / "real" / "plan.json").solver == "other"


def test_a_new_file_has_the_rights_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    PLAN.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_missing_file_a_folder_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(DocumentError, match="it is a folder"):
        load(tmp_path)
    (tmp_path / "image").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(DocumentError, match="byte 0 is not UTF-8"):
        load(tmp_path / "image")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentError, match="not a regular file"):
        load(tmp_path / "pipe")


def test_errors_from_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json().replace('"optimal"', '"superb"'))
    with pytest.raises(DocumentError) as raised:
        load(path)
    assert raised.value.path == str(path)
    assert str(path) in raised.value.what


def test_shapes_are_tuples_after_reading() -> None:
    assert Plan.from_json(PLAN.to_json()).step.inputs[0] == TensorSpec("args[0]", (8, 128), "int64")
