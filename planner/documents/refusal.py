"""What a file is refused for, in the form that all our errors have: field, found, wanted."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NoReturn, cast, get_args, get_origin

import msgspec

from planner.documents.document import KINDS
from planner.documents.fields import SCHEMA_VERSION
from planner.documents.text import AGAIN, shown
from planner.errors import DocumentError


def refuse(
    source: str, field: str, found: str, wanted: str, cause: str = "", fix: str = AGAIN
) -> NoReturn:
    """Raise the `DocumentError` for a field (empty for the whole) of a document."""
    what = source or "the document"
    raise DocumentError(
        f"{what}: {field} is not valid" if field else f"{what} is not valid",
        f"found {found}, wanted {wanted}",
        cause or "edited by hand, cut short, or written by another tool",
        fix,
        path=source,
        field=field,
    )


def read_kind(top: object, source: str) -> str:
    """Return what parsed JSON says that it is; raises `DocumentError` when it is none of ours."""
    if not isinstance(top, dict):
        refuse(source, "", shown(top), "an object")
    if top.get("kind") not in KINDS:
        found = shown(top["kind"]) if "kind" in top else "no kind"
        refuse(source, "kind", found, "one of " + ", ".join(KINDS))
    return str(top["kind"])


def check_head(top: object, kind: str, source: str) -> None:
    """Check kind and version before anything else is read; raises `DocumentError`."""
    found = read_kind(top, source)
    if found != kind:
        cause = "a plan was given for a profile, or the other way round"
        fix = "read it with planner.load(path), which takes both"
        refuse(source, "kind", repr(found), kind, cause, fix)
    assert isinstance(top, dict)
    version, wanted = top.get("schema_version"), f"schema_version {SCHEMA_VERSION}"
    if version is None:
        fix = f'make the file again, or add "schema_version": {SCHEMA_VERSION}'
        refuse(source, "schema_version", "no schema_version", wanted, fix=fix)
    if type(version) is int and version > SCHEMA_VERSION:
        cause = "written by a newer release of planner"
        fix = "upgrade planner, or make the file again with this release"
        found = f"schema_version {shown(version)}"
        refuse(source, "schema_version", found, wanted + " or older", cause, fix)
    if type(version) is not int or version < 1:
        refuse(source, "schema_version", shown(version), wanted)


def explain(
    error: msgspec.ValidationError, kind: Any, top: dict[str, object], source: str
) -> NoReturn:
    """Raise the `DocumentError` for a value that does not fit its struct.

    Args:
        error: what msgspec says, e.g. ``Expected `int`, got `str` - at `$.ops.rows[0][5]` ``.
        kind: the struct of the whole document.
        top: the parsed JSON.
        source: the file's name.
    """
    if not top.keys() <= set(kind.__struct_fields__):  # a key that may look like a place
        refuse(source, "", *_keys(top, kind))
    said, _, place = str(error).rpartition(" - at `$")
    field, value, hint = "", cast(object, top), kind
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        parts = _parts(hint)
        if parts is None:
            field, hint = f"{field}[{index}]", get_args(hint)[0]
        else:  # an object, or a row of a table, whose cells are better known by their columns
            name = name or list(parts)[int(index)]
            field, hint = f"{field}.{name}".lstrip("."), parts[name]
        value = value[int(index) if isinstance(value, list) else name]  # type: ignore[index]
    found, wanted = shown(value), (said or str(error)).removeprefix("Expected ")
    if get_origin(hint) is Literal:
        wanted = "one of " + ", ".join(map(str, get_args(hint)))
    elif isinstance(value, dict) and wanted.startswith("Object "):
        found, wanted = _keys(value, hint)
    refuse(source, field, found, wanted.partition(", got ")[0].replace("`", ""))


def _parts(hint: Any) -> dict[str, Any] | None:
    """Return the fields of a struct, or None for another type."""
    if not isinstance(hint, type) or not issubclass(hint, msgspec.Struct):
        return None
    bare = ((p.name, p.type) for p in msgspec.structs.fields(hint))
    return {name: get_args(t)[0] if get_origin(t) is Annotated else t for name, t in bare}


def _keys(value: dict[str, object], hint: Any) -> tuple[str, str]:
    """Return which key is missing or unknown, and which would be right."""
    parts = msgspec.structs.fields(hint)
    missing = [part.name for part in parts if part.required and part.name not in value]
    if missing:
        return f"no {', '.join(missing)}", "all of " + ", ".join(part.name for part in parts)
    unknown = next(key for key in value if key not in hint.__struct_fields__)
    return f"the unknown key {shown(unknown)}", "only " + ", ".join(hint.__struct_fields__)
