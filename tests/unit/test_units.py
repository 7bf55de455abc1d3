"""Sizes, times and ratios as users read them."""

from __future__ import annotations

import pytest

from planner.units import (
    format_bytes,
    format_bytes_exact,
    format_ns,
    format_percent,
    format_seconds,
)

MIB = 1024**2


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (MIB - 1, "1,048,575 B"),
        (MIB, "1.0 MiB"),
        (300 * MIB, "300.0 MiB"),
        (12_345 * MIB, "12,345.0 MiB"),
        (-3 * MIB, "-3.0 MiB"),
    ],
)
def test_sizes_as_text(size_bytes: int, expected: str) -> None:
    assert format_bytes(size_bytes) == expected
    assert format_bytes_exact(size_bytes) == expected


def test_exact_text_tells_apart_what_rounding_would_not() -> None:
    sizes = (300 * MIB, 300 * MIB + 1)
    assert format_bytes(sizes[0]) == format_bytes(sizes[1])
    assert format_bytes_exact(sizes[0]) != format_bytes_exact(sizes[1])


@pytest.mark.parametrize(
    ("time_ns", "expected"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (45_600, "45.6 us"),
        (1_234_567, "1.23 ms"),
        (123_456_789, "123 ms"),
        (2_500_000_000, "2.50 s"),
        (-1_234_567, "-1.23 ms"),
    ],
)
def test_times_as_text(time_ns: int, expected: str) -> None:
    assert format_ns(time_ns) == expected
    assert format_seconds(time_ns / 1e9) == expected


def test_ratios_as_text() -> None:
    assert format_percent(0.034) == "3.4%"
