"""Rows that differ only in a layer's number, shown as one. Called by the reports.

A model repeats its blocks, so what is said of one is mostly said of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_LAYER = re.compile(r"(?<![^.])\d+(?=$|[.:])")  # a number that is a whole part of a dotted name


def collapse(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Join rows that are equal but for the first layer number in their first cell.

    >>> collapse([("h.0.mlp", "x"), ("h.1.mlp", "x"), ("h.2.mlp", "y"), ("h.4.mlp", "x")])
    [('h.{0-1,4}.mlp', 'x'), ('h.2.mlp', 'y')]
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, *rest in rows:
        groups.setdefault((shape_of(name), *rest), []).append(name)
    return [(joined(names), *key[1:]) for key, names in groups.items()]


def shape_of(name: str) -> str:
    """The name without its layer's number: what alike names have in common."""
    return _LAYER.sub("{}", name, count=1)


def joined(names: Sequence[str]) -> str:
    """Return one name for names that differ in their first layer number.

    >>> joined(["h.0.mlp", "h.1.mlp"])
    'h.{0-1}.mlp'
    """
    if len(names) == 1:
        return names[0]
    found = [_LAYER.search(name) for name in names]
    numbers = sorted({int(match[0]) for match in found if match})
    return shape_of(names[0]).replace("{}", "{" + ranges(numbers) + "}", 1) if numbers else names[0]


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)
