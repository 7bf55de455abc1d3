"""Merges two runs of a step: when storages die, and when they would if autograd saved nothing."""

from __future__ import annotations

from collections import defaultdict

from planner.documents import Storage
from planner.profiler.recorder import Recording


def merge_lives(plain: Recording, natural: Recording) -> tuple[Storage, ...]:
    """Return the plain run's storages with the natural deaths that the other run showed.

    The other run has no backward, so ops are matched by their place among the forward ones, and
    storages by their place among those born at one op, results and arguments apart.
    """
    end = len(plain.ops)
    to_plain = _forward_ops(plain)
    same = shared_ops(plain, natural)
    other = _natural(natural)
    place: dict[int, int] = {index: number for number, index in enumerate(to_plain[:same])}
    born: dict[tuple[int, bool], int] = defaultdict(int)
    found = []
    for life in plain.lives.lives:
        death = max(end if life.death is None else life.death, life.birth)
        natural_death = death
        number = place.get(life.birth)
        if number is not None:
            deaths = other.get((number, life.argument), ())
            at = born[life.birth, life.argument]
            born[life.birth, life.argument] = at + 1
            if at < len(deaths):
                natural_death = _on_plain_clock(deaths[at], to_plain, same, death)
        natural_death = max(natural_death, life.birth)
        found.append(Storage(life.bytes, life.category, life.birth, death, natural_death))
    return tuple(found)


def _forward_ops(recording: Recording) -> list[int]:
    return [i for i, op in enumerate(recording.ops) if op.phase != "backward"]


def shared_ops(plain: Recording, natural: Recording) -> int:
    """Return how many forward ops both runs share from the start (all, when steps are alike)."""
    count = 0
    for index, op in zip(_forward_ops(plain), natural.ops, strict=False):
        if plain.ops[index].name != op.name:
            break
        count += 1
    return count


def _natural(natural: Recording) -> dict[tuple[int, bool], list[int | None]]:
    """Natural deaths, in order, by birth and by whether an op made it; None where it is held."""
    found: dict[tuple[int, bool], list[int | None]] = defaultdict(list)
    for number, life in enumerate(natural.lives.lives):
        held = number in natural.held
        found[life.birth, life.argument].append(None if held else life.death)
    return found


def _on_plain_clock(natural: int | None, to_plain: list[int], same: int, death: int) -> int:
    if natural is None or natural >= same:
        return death
    return min(to_plain[natural], death)
