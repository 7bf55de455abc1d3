"""Whether this process is a copy made for planning: what it uses up is missed by nobody."""

from __future__ import annotations

_throwaway: list[bool] = []


def begin_throwaway() -> None:
    """Make this process a copy whose iterators and files may be used up."""
    _throwaway.append(True)


def is_throwaway() -> bool:
    """Return whether this process is such a copy."""
    return bool(_throwaway)
