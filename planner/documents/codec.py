"""Documents to JSON text and back, for every class of documents alike.

A file is made to be reviewed: keys in the order of the class's fields, nothing that depends on
when or where it was written. A document with tables has one row a line, another is indented.
Called by `Document`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import msgspec

from planner.documents.document import D, Document, Fault
from planner.documents.fields import is_added
from planner.documents.refusal import check_head, explain, refuse
from planner.documents.text import parse, shown, without_collector
from planner.documents.wire import hints, names, required, row_kind, struct
from planner.errors import DocumentError


def write(document: Document) -> str:
    """Return a document's JSON text.

    Raises:
        DocumentError: it holds something that could not be read back.
    """
    kind = type(document)
    with_tables = any(map(row_kind, hints(kind).values()))
    try:
        content = {"kind": kind.KIND, **plain(document)}
        if with_tables:
            text = _one_row_a_line(content)
        else:
            text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise DocumentError(
            f"the {kind.__name__.lower()} cannot be written as JSON",
            str(error),
            "a number that is not finite, or a value that is not a plain Python int, float or str",
            "convert the value first, e.g. int(x)",
        ) from error
    read(kind, text, f"the {kind.__name__.lower()} to be written")
    return text


def plain(record: Any) -> dict[str, Any]:
    """Return a dataclass as JSON values, keys in the order of its fields."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if not is_added(field) or value != field.default:
            row = row_kind(hints(type(record))[field.name])
            found[field.name] = _plain(value) if row is None else _table(row, value)
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return plain(value)
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _table(row: type, records: tuple[Any, ...]) -> dict[str, Any]:
    """Return records by columns, without `added` ones at the end that hold nothing but defaults."""
    columns = list(names(row))
    for field in reversed(fields(row)):
        if not is_added(field) or any(getattr(r, field.name) != field.default for r in records):
            break
        columns.pop()
    cells = (map(attrgetter(column), records) for column in columns)
    return {"columns": columns, "rows": list(zip(*cells, strict=True))}


def _one_row_a_line(content: dict[str, Any]) -> str:
    encode = json.JSONEncoder(allow_nan=False).encode
    parts = []
    for key, value in content.items():
        text = encode(value) if not isinstance(value, dict) or "rows" not in value else ""
        if not text:
            rows = ",\n      ".join(map(encode, value["rows"]))
            body = f"\n      {rows}\n    " if rows else ""
            columns = encode(value["columns"])
            text = f'{{\n    "columns": {columns},\n    "rows": [{body}]\n  }}'
        parts.append(f'"{key}": {text}')
    return "{\n  " + ",\n  ".join(parts) + "\n}\n"


def read(kind: type[D], text: str, source: str = "") -> D:
    """Return the document that a JSON text holds.

    Args:
        kind: its class.
        text: the document.
        source: the file's name, for messages.

    Raises:
        DocumentError: with the path of the field at fault.
    """
    return build(kind, parse(text, source), source)


def build(kind: type[D], top: Any, source: str) -> D:
    """Return the document that parsed JSON holds; see `read`."""
    check_head(top, kind.KIND, source)
    try:
        with without_collector():
            decoded = msgspec.convert(top, struct(kind))
            made = kind(**{key: _value(decoded, key, hint) for key, hint in hints(kind).items()})
    except msgspec.ValidationError as error:
        explain(error, struct(kind), top, source)
    except UnicodeError:
        refuse(source, "", "a key that is not Unicode text", "known keys only")
    for fault in (*_ragged(kind, top), *made.faults()):
        refuse(source, fault.field, shown(fault.found), fault.wanted)
    return made


def _value(decoded: Any, key: str, hint: Any) -> Any:
    value = getattr(decoded, key)
    rows = value if row_kind(hint) is None else value.rows
    return msgspec.convert(rows, hint, from_attributes=True)


def _ragged(kind: type, top: dict[str, Any]) -> Iterator[Fault]:
    """Yield tables with other columns than ours, and rows without a cell for each column."""
    tables = {key: row for key, hint in hints(kind).items() if (row := row_kind(hint))}
    for key, row in tables.items():
        columns, rows = top[key]["columns"], top[key]["rows"]
        if columns != list(names(row)[: max(len(columns), len(required(row)))]):
            yield Fault(f"{key}.columns", columns, str(list(names(row))))
        for index, cells in enumerate(rows):
            if len(cells) != len(columns):
                yield Fault(f"{key}.rows[{index}]", cells, f"a list of {len(columns)}")
