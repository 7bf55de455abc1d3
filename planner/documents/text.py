"""JSON text, strictly: what we write is always the same, what we read must be plain JSON.

Refused on reading: duplicate keys, NaN and infinities, integers beyond 64 bits, nesting too deep,
texts over `MAX_TEXT_BYTES`; then a wrong ``kind`` and a ``schema_version`` that is missing or from
the future. Called by the codecs.
"""

from __future__ import annotations

import json
from typing import NoReturn

from planner.documents.reader import Node, shown
from planner.documents.step import SCHEMA_VERSION
from planner.errors import DocumentError

# A profile of 3,000 ops takes about half a MiB; this leaves room for some 500,000 ops.
MAX_TEXT_BYTES = 128 * 1024**2
# 64-bit integers have at most 19 digits; longer ones may take Python minutes to convert.
_MAX_DIGITS = 20

PLAN_KIND = "planner.plan"
PROFILE_KIND = "planner.profile"
KINDS = (PLAN_KIND, PROFILE_KIND)


def parse(text: str, source: str = "") -> Node:
    """Parse JSON text into the node at its top.

    Args:
        text: the document.
        source: the file's name, for messages.

    Raises:
        DocumentError: it is no JSON, or JSON that two readers could understand differently.
    """
    if not isinstance(text, str):
        _refuse(source, f"found {type(text).__name__}, wanted text", "bytes or a parsed document")
    if len(text) > MAX_TEXT_BYTES:
        numbers = f"found {len(text):,} characters, wanted at most {MAX_TEXT_BYTES:,}"
        _refuse(source, numbers, "not a plan or a profile")
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_constant
        )
        return Node(value, source)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        _refuse(source, f"{error.msg} at {where}", "cut short, or a merge conflict left inside")
    except RecursionError:
        _refuse(source, "lists or objects nested too deep", "not a plan or a profile")
    except ValueError as error:
        _refuse(source, str(error), "edited by hand, or written by another tool")


def render_error(source: str, error: Exception) -> DocumentError:
    """Return the `DocumentError` for a document that has no JSON form."""
    return DocumentError(
        f"{source} cannot be written as JSON",
        str(error),
        "a number that is not finite, or a value that is not a plain Python int, float or str",
        "convert the value first, e.g. int(x)",
    )


def read_kind(top: Node) -> str:
    """Return the document's ``kind``; raises `DocumentError` when it is none of ours."""
    value = top.value
    if not isinstance(value, dict):
        top.fail("an object")
    if value.get("kind") in KINDS:
        return str(value["kind"])
    found = shown(value["kind"]) if "kind" in value else "no kind"
    top.child("kind", value.get("kind")).fail("one of " + ", ".join(KINDS), found)


def expect(top: Node, kind: str) -> None:
    """Check the document's kind and version before anything else is read.

    Raises:
        DocumentError: another kind, or a version this package cannot read.
    """
    found = read_kind(top)
    if found != kind:
        top.child("kind", found).fail(
            kind,
            cause="a plan was given for a profile, or the other way round",
            fix="read it with planner.load(path), which takes both",
        )
    assert isinstance(top.value, dict)
    _check_version(top.child("schema_version", top.value.get("schema_version")))


def _check_version(node: Node) -> None:
    wanted = f"schema_version {SCHEMA_VERSION}"
    if node.value is None:
        node.fail(
            wanted,
            "no schema_version",
            fix=f'make the file again, or add "schema_version": {SCHEMA_VERSION}',
        )
    if type(node.value) is int and node.value > SCHEMA_VERSION:
        node.fail(
            wanted + " or older",
            f"schema_version {shown(node.value)}",
            cause="written by a newer release of planner",
            fix="upgrade planner, or make the file again with this release",
        )
    node.integer(1, SCHEMA_VERSION)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {shown(key)} twice in one object")
        seen.add(key)
    raise AssertionError("unreachable")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits, wanted at most 64 bits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}, which is not JSON")


def _refuse(source: str, numbers: str, cause: str) -> NoReturn:
    raise DocumentError(
        f"{source or 'the document'} is not readable JSON",
        numbers,
        cause,
        "take the file from version control, or make it again with planner",
        path=source,
    )
