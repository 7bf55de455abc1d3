"""Plain text layout: aligned tables and lists of facts. Used by every printer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

GAP = "  "


def grid(head: Sequence[str], rows: Iterable[Sequence[str]], indent: str = GAP) -> list[str]:
    """Return the lines of a table: the first column to the left, the others to the right.

    >>> print(chr(10).join(grid(("unit", "bytes"), [("a", "1,000"), ("long.name", "5")])))
      unit       bytes
      a          1,000
      long.name      5
    """
    table = [tuple(map(printable, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [(indent + _aligned(row, widths)).rstrip() for row in table]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(row, widths, strict=True)
    cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]
    return GAP.join(cells)


def facts(pairs: Iterable[tuple[str, str]], indent: str = GAP) -> list[str]:
    """Return one line for each ``(name, text)``, texts aligned; pairs with an empty text go.

    >>> print(chr(10).join(facts([("peak", "5 B"), ("note", ""), ("overhead", "3.4%")])))
      peak      5 B
      overhead  3.4%
    """
    kept = [(name, printable(text)) for name, text in pairs if text]
    width = max((len(name) for name, _ in kept), default=0)
    return [f"{indent}{name.ljust(width)}{GAP}{text}" for name, text in kept]


def printable(text: str) -> str:
    r"""Return the text on one line, with control characters escaped: files may hold any.

    >>> print(printable("a" + chr(27) + "[2J"))
    a\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
