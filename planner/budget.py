"""Budgets as users write them: `300`, `"2GB"`, `"286MiB"` or `"80%"` of the plain step's peak.

MB and MiB both mean 1024**2 bytes, as in torch's own tools.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from numbers import Rational, Real
from typing import NoReturn

from planner.errors import InvalidBudgetError
from planner.units import MAX_BYTES, MIB, format_bytes

_SCALES = {"B": 1, "K": 1024, "M": MIB, "G": 1024**3, "T": 1024**4}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,2})?)\s*(%|B|[KMGT]i?B?)?", re.I)
_EXAMPLES = "use a number of MB (300) or a text such as '300MB', '2GB', '286MiB' or '80%'"


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as the user gave it: a number of bytes, or a fraction of the plain step's peak.

    Exactly one of the two fields is set.
    """

    bytes: int | None = None
    fraction: Fraction | None = None

    def resolve(self, plain_peak_bytes: int) -> int:
        """Return the budget in bytes, for a plain step that peaks at ``plain_peak_bytes``.

        >>> parse_budget("80%").resolve(1000)
        800
        """
        if self.fraction is None:
            assert self.bytes is not None
            return self.bytes
        resolved = int(self.fraction * plain_peak_bytes)
        if resolved < 1:
            _refuse(str(self), f"that is {resolved} bytes of a plain peak of {plain_peak_bytes}")
        return resolved

    def __str__(self) -> str:
        if self.fraction is not None:
            return f"{float(self.fraction * 100):g}% of the plain peak"
        return format_bytes(self.bytes or 0)


def parse_budget(value: object) -> Budget:
    """Read a budget: a number of MB, or a text with a unit or a percent sign.

    Raises:
        InvalidBudgetError: zero, negative, not finite, a bool, too large or not understood.

    >>> parse_budget(300) == parse_budget("300MiB") == Budget(bytes=300 * 1024**2)
    True
    """
    if isinstance(value, Budget):
        return value
    amount, unit = _split(value)
    if unit == "%":
        return Budget(fraction=_positive(amount / 100, value))
    return Budget(bytes=_whole_bytes(amount * _scale(unit), value))


def parse_bytes(value: object) -> int:
    """Read a size in bytes from a text with a unit, or from a number of MB.

    Raises:
        InvalidBudgetError: as for `parse_budget`, and for a percentage.

    >>> parse_bytes("2GB")
    2147483648
    """
    amount, unit = _split(value)
    if unit == "%":
        _refuse(value, "a percentage is not a size")
    return _whole_bytes(amount * _scale(unit), value)


def _scale(unit: str) -> int:
    return _SCALES[unit[0].upper()]


def _split(value: object) -> tuple[Fraction, str]:
    if isinstance(value, str):
        return _split_text(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        _refuse(value, f"a {type(value).__name__} is not a size")
    if isinstance(value, Rational):  # int, Fraction and NumPy's integers
        return Fraction(int(value.numerator), int(value.denominator)), "MB"
    if not isfinite(value):
        _refuse(value, "not a finite number")
    return Fraction(float(value)), "MB"


def _split_text(text: str) -> tuple[Fraction, str]:
    match = _SIZE.fullmatch(text.strip()) if text.isascii() else None
    if match is None:
        _refuse(text, "not a positive number with a unit")
    return Fraction(match[1]), match[2] or "MB"


def _positive(amount: Fraction, value: object) -> Fraction:
    if amount <= 0:
        _refuse(value, "a budget must be greater than 0")
    if amount > MAX_BYTES:
        _refuse(value, f"more than the largest size, {MAX_BYTES:,} bytes")
    return amount


def _whole_bytes(amount: Fraction, value: object) -> int:
    whole = int(_positive(amount, value))
    if whole < 1:
        _refuse(value, "less than one byte")
    return whole


def _refuse(value: object, why: str) -> NoReturn:
    raise InvalidBudgetError(
        "the budget is not a usable size",
        f"got {_shown(value)}: {why}",
        "a typing slip, or a number computed in another unit",
        _EXAMPLES,
    )


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 100:
        return f"an integer of {value.bit_length()} bits"  # Python may refuse to print it
    if isinstance(value, (str, Real)):
        return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return f"a {type(value).__name__}"
