"""Types of fields, from which files are read, checked and described.

A document is a frozen dataclass. Its annotations are all that `planner.documents.codec` needs: a
file has the same keys in the same order, and the JSON schema says the same, with the words of the
class's docstring. A plain `int` is a count of at least 0, a plain `float` a finite ratio of at
least 0; other limits are the types below; a closed set of strings is a `Literal`.

To add a field, add one line to the dataclass (and one to its docstring), with `added`:

    training: bool = added(True)

A file leaves it out while it has this default, and files without it are still read. A new column
of a table goes after the last one. Then run ``python scripts/make_schemas.py``.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from planner.units import MAX_BYTES

SCHEMA_VERSION = 1
T = TypeVar("T")

Count = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
"""At least 0, and within 64 bits like every integer in a document."""
Positive = Annotated[int, Meta(ge=1, le=MAX_BYTES)]
"""At least 1."""
Index = Annotated[int, Meta(ge=-1, le=MAX_BYTES)]
"""A row number, or -1 for none."""
Depth = Annotated[
    int, Meta(ge=-MAX_BYTES - 1, le=MAX_BYTES, extra_json_schema={"not": {"const": 0}})
]
"""Any integer but 0."""
Ratio = Annotated[float, Meta(ge=0, le=float(MAX_BYTES))]
"""Finite and at least 0."""

Version = Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)]
"""Of the file format."""

TABLE = "table"
"""Marks a tuple of records whose JSON form is ``{"columns": [...], "rows": [...]}``."""

_ADDED = {"added": True}


def added(default: T) -> Any:
    """Return a field that files need not have: absent from a file, it has this default."""
    return field(default=default, metadata=_ADDED)


def is_added(field: Any) -> bool:
    """Whether a dataclass field was made by `added`."""
    return "added" in field.metadata
