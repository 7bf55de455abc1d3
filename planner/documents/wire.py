"""The JSON form of a document's class, derived from its annotations: structs that msgspec decodes.

The structs differ from the dataclasses in being strict: no unknown keys, no missing ones but those
of `added` fields, and the limits of `planner.documents.fields`. Called by the codec.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from planner.documents.document import Document
from planner.documents.fields import TABLE, Count, Ratio, is_added

F = TypeVar("F", bound=Callable[..., Any])


def once(function: F) -> F:
    """Cache a function's results; typed as the function, as mypy takes no class for hashable."""
    return cast(F, cache(function))


@once
def hints(kind: Any) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields, in order."""
    found = get_type_hints(kind, include_extras=True)
    return {field.name: found[field.name] for field in fields(kind)}


@once
def names(kind: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, which are its keys or columns in a file."""
    return tuple(hints(kind))


@once
def required(kind: Any) -> tuple[str, ...]:
    """Return the names that every file has: all but those of `added` fields."""
    return tuple(field.name for field in fields(kind) if not is_added(field))


def row_kind(hint: Any) -> type | None:
    """Return the class of a table's rows, or None where a field is no table."""
    if get_origin(hint) is not Annotated or TABLE not in get_args(hint):
        return None
    kind: type = get_args(get_args(hint)[0])[0]
    return kind


@once
def struct(kind: Any, as_row: bool = False) -> type[msgspec.Struct]:
    """Return the struct for a dataclass: a JSON object, or a list with `as_row`."""
    described = _words(kind)
    defaults = {field.name: (field.default,) for field in fields(kind) if is_added(field)}
    made: list[Any] = [("kind", Literal[kind.KIND])] if issubclass(kind, Document) else []
    for name, hint in hints(kind).items():
        words = msgspec.Meta(description=described.get(name))
        made.append((name, Annotated[_wire(hint), words], *defaults.get(name, ())))
    return msgspec.defstruct(
        kind.__name__,
        made,
        array_like=as_row,
        kw_only=not as_row,
        forbid_unknown_fields=True,
        frozen=True,
    )


def _wire(hint: Any) -> Any:
    """Return what a field's annotation is in JSON."""
    row = row_kind(hint)
    if row is not None:
        return _table(row)
    if hint is int:
        return Count
    if hint is float:
        return Ratio
    if is_dataclass(hint):
        return struct(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        each: Any = _wire(parts[0])
        return tuple[each, ...]
    if origin in (UnionType, Union):
        return reduce(or_, map(_wire, parts))
    return hint


@once
def _table(row: Any) -> type[msgspec.Struct]:
    least, every = len(required(row)), names(row)
    allowed = [list(every[:count]) for count in range(least, len(every) + 1)]
    says = {"const": allowed[0]} if len(allowed) == 1 else {"enum": allowed}
    columns = Annotated[tuple[str, ...], msgspec.Meta(extra_json_schema=says)]
    rows: Any = tuple[struct(row, True), ...]  # type: ignore[misc]
    made = [("columns", columns), ("rows", rows)]
    return msgspec.defstruct(f"{row.__name__}Table", made, forbid_unknown_fields=True, frozen=True)


def _words(kind: type) -> dict[str, str]:
    """Return what the docstring says of each field, under ``Attributes:``."""
    _, _, listed = (kind.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", listed, re.M)
    return {name: " ".join(text.replace("``", "").split()).rstrip(".") for name, text in found}


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a document's class."""
    made = msgspec.json.schema(struct(kind))
    parts = made["$defs"]
    for part in parts.values():
        del part["title"]  # the name under which it stands
    about = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"planner {kind.__name__.lower()}",
        "description": f"{about} Sizes are bytes, times nanoseconds.",
        **parts.pop(kind.__name__),
        "$defs": parts,
    }
