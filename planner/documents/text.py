"""Strict JSON parsing: everything that two parsers could read differently is refused.

That is duplicate keys, NaN and infinities, integers of absurd length, nesting too deep, and texts
over `MAX_TEXT_BYTES`. Called by the codec.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from planner.errors import DocumentError

# A profile of 3,000 ops takes about half a MiB; this leaves room for some 500,000 ops.
MAX_TEXT_BYTES = 128 * 1024**2
# Python refuses to convert very long integers, which could take minutes; old patch releases don't.
_PYTHON_LIMITS_DIGITS = hasattr(sys, "get_int_max_str_digits")
AGAIN = "take the file from version control, or make it again with planner"


def parse(text: str, source: str = "") -> object:
    """Parse JSON text.

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
        with without_collector():
            return _loaded(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        _refuse(source, f"{error.msg} at {where}", "cut short, or a merge conflict left inside")
    except RecursionError:
        _refuse(source, "lists or objects nested too deep", "not a plan or a profile")
    except ValueError as error:
        _refuse(source, str(error), "edited by hand, or written by another tool")


def _loaded(text: str, parse_int: Callable[[str], int] | None = None) -> object:
    if parse_int is None and not _PYTHON_LIMITS_DIGITS:
        parse_int = _integer
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_int=parse_int, parse_constant=_constant
        )
    except ValueError as error:
        if parse_int is not None or isinstance(error, json.JSONDecodeError):
            raise
        return _loaded(text, _integer)  # slower, and says in our words which integer is too long


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause garbage collection: it would visit a growing tree again and again, to free nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def shown(value: object, most: int = 60) -> str:
    """Show a JSON value in a message, short whatever it is.

    >>> shown([1, [2]]), shown(True), shown(-5)
    ('a list of 2', 'true', '-5')
    """
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if value is None or isinstance(value, bool):
        return str({None: "null", True: "true", False: "false"}[value])
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"  # its digits could take minutes
    text = ascii(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} twice in one object")
    return made


def _integer(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"an integer of {len(digits)} digits, wanted at most 64 bits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}, which is not JSON")


def _refuse(source: str, numbers: str, cause: str) -> NoReturn:
    what = f"{source or 'the document'} is not readable JSON"
    raise DocumentError(what, numbers, cause, AGAIN, path=source)
