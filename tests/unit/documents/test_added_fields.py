"""Fields that were added to a document later: files without them are read, and stay as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from planner.documents.document import Document
from planner.documents.fields import SCHEMA_VERSION, TABLE, Version, added
from planner.documents.wire import schema
from planner.errors import DocumentError


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        a: the first.
        b: came later.
        c: came last.
    """

    a: int
    b: int = added(7)
    c: bool = added(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Document):
    """A document.

    Attributes:
        name: its name.
        training: came later.
        rows: a table.
    """

    KIND = "planner.plan"

    schema_version: Version = SCHEMA_VERSION
    name: str
    training: bool = added(True)
    rows: Annotated[tuple[Row, ...], TABLE] = ()


OLD = Sample(name="x", rows=(Row(1), Row(2)))


def changed(document: Sample, **values: object) -> str:
    return json.dumps({**json.loads(document.to_json()), **values})


def test_a_default_is_left_out_of_the_file() -> None:
    content = json.loads(OLD.to_json())
    assert list(content) == ["kind", "schema_version", "name", "rows"]
    assert content["rows"] == {"columns": ["a"], "rows": [[1], [2]]}
    assert Sample.from_json(OLD.to_json()) == OLD


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((Row(1, 8), Row(2)), ["a", "b"]), ((Row(1), Row(2, 7, True)), ["a", "b", "c"])],
)
def test_another_value_is_written(rows: tuple[Row, ...], columns: list[str]) -> None:
    new = Sample(name="x", training=False, rows=rows)
    content = json.loads(new.to_json())
    assert content["training"] is False and content["rows"]["columns"] == columns
    assert Sample.from_json(new.to_json()) == new
    assert Sample.from_json(new.to_json()).to_json() == new.to_json()


def test_a_default_may_stand_in_the_file() -> None:
    rows = {"columns": ["a", "b", "c"], "rows": [[1, 7, False], [2, 7, False]]}
    assert Sample.from_json(changed(OLD, training=True, rows=rows)) == OLD


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ({"columns": ["a", "c"], "rows": []}, "rows.columns"),
        ({"columns": [], "rows": []}, "rows.columns"),
        ({"columns": ["a"], "rows": [[1, 8]]}, "rows.rows[0]"),
        ({"columns": ["a", "b"], "rows": [[1, 8], [2]]}, "rows.rows[1]"),
        ({"columns": ["a", "b"], "rows": [[1, -8]]}, "rows.rows[0].b"),
    ],
)
def test_columns_and_cells_that_do_not_fit_are_refused(rows: object, field: str) -> None:
    with pytest.raises(DocumentError) as raised:
        Sample.from_json(changed(OLD, rows=rows))
    assert raised.value.field == field


def test_the_other_fields_must_stand_in_the_file() -> None:
    with pytest.raises(DocumentError, match="found no name"):
        Sample.from_json(json.dumps({"kind": "planner.plan", "schema_version": 1}))


def test_the_schema_asks_for_them_no_more_than_the_reader() -> None:
    made = schema(Sample)
    assert "training" in made["properties"] and "training" not in made["required"]
    assert made["properties"]["training"]["description"] == "came later"
    columns = made["$defs"]["RowTable"]["properties"]["columns"]["enum"]
    assert columns == [["a"], ["a", "b"], ["a", "b", "c"]]
