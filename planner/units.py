"""Sizes, times and ratios as text for people.

Inside the package sizes are integer bytes and times integer nanoseconds; only this module and
`planner.budget` know other units.
"""

from __future__ import annotations

MIB = 1024**2
MAX_BYTES = 2**63 - 1  # what a 64-bit integer holds, so that any tool can read our documents


def format_bytes(size_bytes: int) -> str:
    """Show a size in MiB with one decimal, or in whole bytes below one MiB.

    >>> format_bytes(300 * 1024**2), format_bytes(1536)
    ('300.0 MiB', '1,536 B')
    """
    if abs(size_bytes) < MIB:
        return f"{size_bytes:,} B"
    return f"{size_bytes / MIB:,.1f} MiB"


def format_bytes_exact(size_bytes: int) -> str:
    """Show a size in MiB and, where that rounds, the bytes as well.

    >>> format_bytes_exact(300 * 1024**2 + 1)
    '300.0 MiB (314,572,801 B)'
    """
    rough = format_bytes(size_bytes)
    exact = abs(size_bytes) < MIB or (size_bytes * 10) % MIB == 0
    return rough if exact else f"{rough} ({size_bytes:,} B)"


def format_ns(time_ns: float) -> str:
    """Show a time of nanoseconds in the unit that keeps it short.

    >>> format_ns(900), format_ns(1_234_567), format_ns(2_500_000_000)
    ('900 ns', '1.23 ms', '2.50 s')
    """
    for limit, scale, unit in ((1e3, 1.0, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(time_ns) < limit:
            return f"{time_ns:.0f} ns" if unit == "ns" else f"{_short(time_ns / scale)} {unit}"
    return f"{_short(time_ns / 1e9)} s"


def format_seconds(time_seconds: float) -> str:
    """Show a time of seconds in the unit that keeps it short.

    >>> format_seconds(0.0125)
    '12.5 ms'
    """
    return format_ns(time_seconds * 1e9)


def format_percent(ratio: float) -> str:
    """Show a ratio as a percentage with one decimal.

    >>> format_percent(0.034)
    '3.4%'
    """
    return f"{ratio * 100:.1f}%"


def _short(number: float) -> str:
    size = abs(number)
    return f"{number:.2f}" if size < 10 else f"{number:.1f}" if size < 100 else f"{number:,.0f}"
