"""The user's pins and the profile's exclusions as sets of ops.

SAVE: what these ops make stays. RECOMPUTE: what these ops make, and their unit packs, is dropped
where it can be. EXCLUDED: what these ops make stays, and they never run again. Where pins nest,
the innermost unit decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from planner.documents import Exclusion, Pins
from planner.errors import PlannerError, UnknownUnitError
from planner.graph.model import Graph


@dataclass(frozen=True, slots=True)
class Wishes:
    """Op numbers with a fate of their own.

    Attributes:
        saved: ops whose values stay.
        forced: for each op whose values must be dropped, the stop of the unit that says so, or
            the end of the step when it is a unit without parts (whose result others pack).
        excluded: ops that never run again and whose values stay.
    """

    saved: frozenset[int] = frozenset()
    forced: tuple[tuple[int, int], ...] = ()
    excluded: frozenset[int] = frozenset()

    def plain(self) -> bool:
        """Return whether nothing is wished for."""
        return not (self.saved or self.forced or self.excluded)


def wishes(graph: Graph, pins: Pins, exclusions: Iterable[Exclusion] = ()) -> Wishes:
    """Resolve pins and exclusions on a graph.

    Raises:
        UnknownUnitError: a pin names no unit.
        PlannerError: a unit is pinned both ways, or must be recomputed and cannot be.
    """
    names = tuple(dict.fromkeys(unit.name for unit in graph.profile.units))
    save = _matches(pins.save, names)
    recompute = _matches(pins.recompute, names)
    out = {e.unit: e.reason for e in (*graph.profile.excluded, *exclusions)}
    _check(save, recompute, out)
    first = [unit for unit in graph.profile.units if unit.root_call == 0]
    excluded = {i for unit in first if unit.name in out for i in range(unit.enter, unit.exit)}
    fate: dict[int, int] = {}  # op -> stop of the forcing unit, -1 for saved
    leaves = _leaves(graph)
    for unit in first:  # parents stand before children, so the innermost writes last
        if unit.name in save:
            fate |= dict.fromkeys(range(unit.enter, unit.exit), -1)
        elif unit.name in recompute:
            stop = graph.n_ops if id(unit) in leaves else unit.exit
            fate |= dict.fromkeys(range(unit.enter, unit.exit), stop)
    forced = tuple(sorted((op, s) for op, s in fate.items() if s >= 0 and op not in excluded))
    return Wishes(frozenset(o for o, s in fate.items() if s < 0), forced, frozenset(excluded))


def _matches(patterns: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Units matched, each with the pattern that matched it first."""
    found: dict[str, str] = {}
    for pattern in patterns:
        name_pattern = "" if pattern == "." else pattern
        hits = [name for name in names if fnmatchcase(name, name_pattern)]
        if not hits:
            near = get_close_matches(pattern, [n for n in names if n], n=5, cutoff=0.4)
            raise UnknownUnitError(name=pattern, near=tuple(near))
        for name in hits:
            found.setdefault(name, pattern)
    return found


def _check(save: dict[str, str], recompute: dict[str, str], out: dict[str, str]) -> None:
    for name, pattern in recompute.items():
        if name in save:
            raise PlannerError(
                f"unit {name or '.'!r} is pinned to be saved and to be recomputed",
                f"save={save[name]!r} and recompute={pattern!r} both match it",
                "two patterns overlap",
                f"drop {name or '.'!r} from one of the two",
            )
        if name in out:
            raise PlannerError(
                f"unit {name or '.'!r} is pinned to be recomputed but cannot be replayed",
                f"recompute={pattern!r} matches it",
                out[name],
                f"drop {name or '.'!r} from recompute",
            )


def _leaves(graph: Graph) -> set[int]:
    """Identities of the calls in which no other call runs ops."""
    units = graph.profile.units
    busy = {unit.parent for unit in units if unit.enter < unit.exit}
    return {id(unit) for index, unit in enumerate(units) if index not in busy}
