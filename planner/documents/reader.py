"""`Node`: one JSON value that knows where it stands, read by asking for what it must be.

The codecs read documents with it, so that every mistake in a file ends in one `DocumentError`
with the field's path (``segments[3].cuts[0].depth``), what was found and what was wanted.
"""

from __future__ import annotations

from math import isfinite
from typing import NoReturn

from planner.errors import DocumentError
from planner.units import MAX_BYTES


class Node:
    """A value inside a parsed document.

    Args:
        value: what the JSON parser made.
        source: the file's name, for messages.
        parent: the value around it; None at the top.
        key: its key or index in the parent.
    """

    # A profile has some 100,000 values: slots, and a path that is only put together on failure.
    __slots__ = ("key", "parent", "source", "value")

    def __init__(
        self, value: object, source: str, parent: Node | None = None, key: str | int = ""
    ) -> None:
        self.value = value
        self.source = source
        self.parent = parent
        self.key = key

    @property
    def field(self) -> str:
        """The path from the top, e.g. ``segments[3].keep``."""
        if self.parent is None:
            return ""
        above = self.parent.field
        if isinstance(self.key, int):
            return f"{above}[{self.key}]"
        return f"{above}.{self.key}" if above else self.key

    def fail(self, wanted: str, found: str = "", cause: str = "", fix: str = "") -> NoReturn:
        """Raise the `DocumentError` for this value."""
        source, field = self.source or "the document", self.field
        raise DocumentError(
            f"{source}: {field} is not valid" if field else f"{source} is not valid",
            f"found {found or shown(self.value)}, wanted {wanted}",
            cause or "edited by hand, cut short, or written by another tool",
            fix or "take the file from version control, or make it again with planner",
            path=self.source,
            field=field,
        )

    def child(self, key: str | int, value: object) -> Node:
        """Return the value below this one."""
        return Node(value, self.source, self, key)

    def record(self, names: tuple[str, ...]) -> dict[str, Node]:
        """Read an object that has exactly these keys, in any order."""
        value = self.value
        if not isinstance(value, dict):
            self.fail("an object")
        missing = [name for name in names if name not in value]
        unknown = [name for name in value if name not in names]
        if missing:
            self.fail("all of " + ", ".join(names), f"no {', '.join(missing)}")
        if unknown:
            self.fail("only " + ", ".join(names), "the unknown key " + shown(unknown[0]))
        return {name: self.child(name, value[name]) for name in names}

    def items(self) -> list[Node]:
        """Read a list."""
        if not isinstance(self.value, list):
            self.fail("a list")
        return [self.child(index, item) for index, item in enumerate(self.value)]

    def row(self, names: tuple[str, ...]) -> list[Node]:
        """Read a list with one entry for each of these columns."""
        value = self.value
        if not isinstance(value, list) or len(value) != len(names):
            self.fail(f"a list of {len(names)}: {', '.join(names)}")
        return [self.child(name, item) for name, item in zip(names, value, strict=True)]

    def integer(self, low: int = 0, high: int = MAX_BYTES) -> int:
        """Read an integer within ``low..high``; a bool or 3.0 is none."""
        value = self.value
        if type(value) is not int or not low <= value <= high:
            self.fail(_integer(low, high))
        return value

    def integers(self, low: int = 0, high: int = MAX_BYTES) -> tuple[int, ...]:
        """Read a list of integers within ``low..high``."""
        value = self.value
        if not isinstance(value, list):
            self.fail("a list of integers")
        for index, item in enumerate(value):
            if type(item) is not int or not low <= item <= high:
                self.child(index, item).fail(_integer(low, high))
        return tuple(value)

    def ratio(self) -> float:
        """Read a finite number that is not negative."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail("a number")
        if not 0 <= value <= MAX_BYTES or not isfinite(value):
            self.fail("a finite number of at least 0")
        return float(value) + 0.0  # + 0.0 turns -0.0 into 0.0

    def text(self) -> str:
        """Read a text."""
        if not isinstance(self.value, str):
            self.fail("a text")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """Read a list of texts."""
        return tuple(item.text() for item in self.items())

    def flag(self) -> bool:
        """Read true or false."""
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return self.value

    def choice(self, names: tuple[str, ...]) -> str:
        """Read one of these texts."""
        if not isinstance(self.value, str) or self.value not in names:
            self.fail("one of " + ", ".join(names))
        return self.value

    def integer_or_none(self) -> int | None:
        """Read an integer of at least 0, or null."""
        return None if self.value is None else self.integer()

    def ratio_or_none(self) -> float | None:
        """Read a ratio, or null."""
        return None if self.value is None else self.ratio()


def _integer(low: int, high: int) -> str:
    if high < low:
        return "no entry here: the list it points into is empty"
    return f"an integer from {low} to {high}"


def shown(value: object, most: int = 60) -> str:
    """Show a value in a message, short whatever it is.

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
