"""`Profile` to JSON and back.

Each long list is a table, ``{"columns": [...], "rows": [...]}``, with one row a line: small, quick
to parse, and still readable and easy to compare. All indices are checked on reading, so that what
comes out can be used without further checks.
"""

from __future__ import annotations

import json
from typing import Any

from planner.documents.profile import (
    CATEGORIES,
    PHASES,
    Op,
    Profile,
    SavedTensor,
    Storage,
    UnitCall,
    Value,
)
from planner.documents.reader import Node
from planner.documents.step_codec import names, read_exclusions, read_step
from planner.documents.text import PROFILE_KIND, expect, parse, render_error

_HEAD = (
    "kind",
    "schema_version",
    "model_class",
    "fingerprint",
    "step",
    "plain_peak_bytes",
    "step_time_ns",
    "forward_time_ns",
    "excluded",
)
_TABLES = {
    "units": names(UnitCall),
    "ops": names(Op),
    "values": names(Value),
    "storages": names(Storage),
    "saved": names(SavedTensor),
}
_KEYS = (*_HEAD, *_TABLES)


def profile_to_json(profile: Profile) -> str:
    """Return the profile's JSON text.

    Raises:
        DocumentError: it holds something that `profile_from_json` would refuse.
    """
    try:
        parts = [f'"{name}": {_inline(_head(profile, name))}' for name in _HEAD]
        parts += [f'"{name}": {_table(profile, name)}' for name in _TABLES]
    except (TypeError, ValueError) as error:
        raise render_error("the profile", error) from error
    text = "{\n  " + ",\n  ".join(parts) + "\n}\n"
    profile_from_json(text, "the profile to be written")
    return text


def _head(profile: Profile, name: str) -> object:
    return PROFILE_KIND if name == "kind" else getattr(profile, name)


def _inline(value: object) -> str:
    return json.dumps(value, default=_record, allow_nan=False)


def _record(value: Any) -> dict[str, object]:
    if not hasattr(value, "__dataclass_fields__"):
        raise TypeError(f"a value of type {type(value).__name__}")
    return {name: getattr(value, name) for name in names(value)}


def _table(profile: Profile, name: str) -> str:
    columns = _TABLES[name]
    rows = [_inline([getattr(row, key) for key in columns]) for row in getattr(profile, name)]
    body = "\n      " + ",\n      ".join(rows) + "\n    " if rows else ""
    return f'{{\n    "columns": {_inline(columns)},\n    "rows": [{body}]\n  }}'


def profile_from_json(text: str, source: str = "") -> Profile:
    """Return the profile that a JSON text holds.

    Args:
        text: the document.
        source: the file's name, for messages.

    Raises:
        DocumentError: with the path of the field at fault.
    """
    return read_profile(parse(text, source))


def read_profile(top: Node) -> Profile:
    """Read a profile from the top of a parsed document."""
    expect(top, PROFILE_KIND)
    at = top.record(_KEYS)
    tables = {name: _rows(at[name], columns) for name, columns in _TABLES.items()}
    count = {name: len(rows) for name, rows in tables.items()}
    return Profile(
        schema_version=at["schema_version"].integer(),
        model_class=at["model_class"].text(),
        fingerprint=at["fingerprint"].text(),
        step=read_step(at["step"]),
        units=tuple(_unit(row, index, count) for index, row in enumerate(tables["units"])),
        ops=tuple(_op(row, count) for row in tables["ops"]),
        values=tuple(_value(row, count) for row in tables["values"]),
        storages=tuple(_storage(row, count) for row in tables["storages"]),
        saved=tuple(_saved(row, count) for row in tables["saved"]),
        plain_peak_bytes=at["plain_peak_bytes"].integer(),
        step_time_ns=at["step_time_ns"].integer(),
        forward_time_ns=at["forward_time_ns"].integer(),
        excluded=read_exclusions(at["excluded"]),
    )


def _rows(node: Node, columns: tuple[str, ...]) -> list[Node]:
    at = node.record(("columns", "rows"))
    if at["columns"].value != list(columns):
        at["columns"].fail(str(list(columns)))
    return at["rows"].items()


def _unit(row: Node, index: int, count: dict[str, int]) -> UnitCall:
    name, call, root_call, kind, parent, enter, leave = row.row(_TABLES["units"])
    entered = enter.integer(0, count["ops"])
    return UnitCall(
        name=name.text(),
        call=call.integer(),
        root_call=root_call.integer(),
        kind=kind.text(),
        parent=parent.integer(-1, index - 1),  # parents come first, so there are no cycles
        enter=entered,
        exit=leave.integer(entered, count["ops"]),
    )


def _op(row: Node, count: dict[str, int]) -> Op:
    name, unit, phase, inputs, outputs, time_ns, flops, replayable, random = row.row(_TABLES["ops"])
    last_value = count["values"] - 1
    return Op(
        name=name.text(),
        unit=unit.integer(-1, count["units"] - 1),
        phase=phase.choice(PHASES),
        inputs=inputs.integers(0, last_value),
        outputs=outputs.integers(0, last_value),
        time_ns=time_ns.integer(),
        flops=flops.integer(),
        replayable=replayable.flag(),
        random=random.flag(),
    )


def _value(row: Node, count: dict[str, int]) -> Value:
    storage, version, op = row.row(_TABLES["values"])
    return Value(
        storage=storage.integer(0, count["storages"] - 1),
        version=version.integer(),
        op=op.integer(-1, count["ops"] - 1),
    )


def _storage(row: Node, count: dict[str, int]) -> Storage:
    size, category, birth, death, natural_death = row.row(_TABLES["storages"])
    born = birth.integer(-1, count["ops"] - 1)
    return Storage(
        bytes=size.integer(),
        category=category.choice(CATEGORIES),
        birth=born,
        death=death.integer(born, count["ops"]),
        natural_death=natural_death.integer(born, count["ops"]),
    )


def _saved(row: Node, count: dict[str, int]) -> SavedTensor:
    value, packed_at, unpacked_at = row.row(_TABLES["saved"])
    return SavedTensor(
        value=value.integer(0, count["values"] - 1),
        packed_at=packed_at.integer(0, count["ops"]),
        unpacked_at=unpacked_at.integer(-1, count["ops"]),
    )
