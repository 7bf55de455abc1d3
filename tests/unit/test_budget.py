"""Budgets as users write them, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.budget import Budget, parse_budget, parse_bytes
from planner.errors import InvalidBudgetError
from planner.units import MAX_BYTES

MIB = 1024**2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (300, 300 * MIB),
        (0.5, MIB // 2),
        (Fraction(1, 2), MIB // 2),
        (np.int64(300), 300 * MIB),
        (np.float32(1.5), MIB * 3 // 2),
        ("300", 300 * MIB),
        ("300MB", 300 * MIB),
        ("286MiB", 286 * MIB),
        (" 286 mib ", 286 * MIB),
        ("2GB", 2 * 1024**3),
        ("2GiB", 2 * 1024**3),
        ("1.5g", 3 * 1024**3 // 2),
        ("1TB", 1024**4),
        ("512K", 512 * 1024),
        ("4096B", 4096),
        ("1e3MB", 1000 * MIB),
        ("0.1MB", MIB // 10),
    ],
)
def test_sizes(value: object, expected: int) -> None:
    assert parse_budget(value) == Budget(bytes=expected)
    assert parse_budget(value).resolve(plain_peak_bytes=1) == expected
    assert parse_bytes(value) == expected


@pytest.mark.parametrize(
    ("text", "plain_peak_bytes", "expected"),
    [("80%", 1000, 800), ("33.3%", 1000, 333), ("0.1 %", 10_000, 10), ("120%", 100, 120)],
)
def test_percentages_are_exact(text: str, plain_peak_bytes: int, expected: int) -> None:
    assert parse_budget(text).resolve(plain_peak_bytes) == expected


def test_a_budget_passes_through() -> None:
    assert parse_budget(parse_budget("80%")) == Budget(fraction=Fraction(4, 5))


def test_a_budget_prints_as_a_size_or_a_share() -> None:
    assert str(parse_budget(300)) == "300.0 MiB"
    assert str(parse_budget("62.5%")) == "62.5% of the plain peak"


REFUSED = [
    0,
    -1,
    0.0,
    -0.5,
    float("nan"),
    float("inf"),
    float("-inf"),
    np.float64("nan"),
    np.bool_(True),
    True,
    False,
    None,
    [300],
    b"300",
    1j,
    10**100_000,
    1e300,
    1e-30,
    "",
    " ",
    "-5MB",
    "+5MB",
    "0",
    "0%",
    "-1%",
    "nan",
    "inf",
    "1e99GB",
    "1" * 10_000,
    "0.1B",
    "300 M B",
    "300XB",
    "%",
    "MB",
    "1,5GB",
    "1_000",
    "0x10",
    "٣٠٠",  # Arabic digits, which int() would take
    "300MB\n300MB",
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_refused_with_four_parts(value: object) -> None:
    with pytest.raises(InvalidBudgetError) as raised:
        parse_budget(value)
    error = raised.value
    assert error.what and error.numbers.startswith("got ") and error.cause
    assert "80%" in error.fix
    assert len(str(error)) < 500


def test_a_percentage_is_no_size() -> None:
    with pytest.raises(InvalidBudgetError, match="percentage"):
        parse_bytes("80%")


def test_a_share_below_one_byte_is_refused() -> None:
    with pytest.raises(InvalidBudgetError):
        parse_budget("0.1%").resolve(plain_peak_bytes=10)


@given(st.one_of(st.text(max_size=30), st.floats(), st.integers(), st.booleans(), st.none()))
def test_anything_else_gives_a_budget_or_the_error(value: object) -> None:
    try:
        budget = parse_budget(value)
    except InvalidBudgetError:
        return
    assert (budget.bytes is None) != (budget.fraction is None)
    assert budget.bytes is None or 1 <= budget.bytes <= MAX_BYTES


@given(st.integers(1, MAX_BYTES // MIB))
def test_whole_numbers_of_mb_are_exact(amount_mb: int) -> None:
    assert parse_bytes(amount_mb) == parse_bytes(f"{amount_mb}MB") == amount_mb * MIB
