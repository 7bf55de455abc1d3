"""The peak of a step whose storages' lives are known; used by `build` and `sharding`."""

from __future__ import annotations

from collections.abc import Iterable

from planner.documents import Storage


def peak_of(storages: Iterable[Storage], ops: int) -> int:
    """Return the most bytes alive during any of so many ops.

    >>> peak_of([Storage(5, "activation", 0, 1, 1), Storage(3, "activation", 1, 2, 2)], 3)
    8
    """
    change = [0] * (ops + 2)
    for storage in storages:
        change[max(storage.birth, 0)] += storage.bytes
        change[storage.death + 1] -= storage.bytes
    live = peak = 0
    for delta in change[: max(ops, 1)]:
        live += delta
        peak = max(peak, live)
    return peak
