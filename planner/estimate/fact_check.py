"""Checks the facts of a step under stand-ins against a forward that ran for real.

Op by op: what runs, the sizes of what it makes, and when each dies by itself. Where they differ
the real facts win, and the difference is named, once for each kind of op. A block in which other
ops run for real is left out, since nothing is known of what its replay would take. Workspaces,
which stand-ins cannot show, are added. Pure; called by `planner.planning.capped`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import torch

from planner.documents import Exclusion, Profile, Storage, UnitCall
from planner.memory.allocator import blocks_of
from planner.memory.peak import peak_of
from planner.memory.rounding import CUDA, in_blocks
from planner.memory.workspaces import with_workspaces
from planner.profiler.recorder import Recording
from planner.units import format_bytes


def checked(
    profile: Profile, real: Recording, device: torch.device
) -> tuple[Profile, dict[int, int], tuple[str, ...]]:
    """Return the profile with the facts of a real forward.

    Args:
        profile: from `planner.estimate.fake_profile`.
        real: a forward with everything given up; see `planner.profiler.forwards`.
        device: where it ran.

    Returns:
        The profile; for each op of the real forward its op in the profile, where there is one;
        and what differed, in words.
    """
    check = _Check(profile, real, device)
    check.run()
    return check.profile(), check.places, tuple(check.said.values())


def same_forward(profile: Profile, real: Recording) -> bool:
    """Return whether a real forward ran the very ops of the profile."""
    forward = [op.name for op in profile.ops if op.phase != "backward"]
    return forward[: len(real.ops)] == [op.name for op in real.ops]


class _Check:
    """One comparison under way."""

    def __init__(self, profile: Profile, real: Recording, device: torch.device) -> None:
        self.given, self.real, self.device = profile, real, device
        self.storages = list(profile.storages)
        self.forward = [i for i, op in enumerate(profile.ops) if op.phase != "backward"]
        self.places: dict[int, int] = {}
        self.left_out: dict[str, Exclusion] = {}
        self.said: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Pair the ops, then compare what each pair makes."""
        self._pair()
        ours = _by_birth(storage.birth for storage in self.given.storages)
        theirs = _by_birth(life.birth for life in self.real.lives.lives)
        for real, op in self.places.items():
            if len(ours[op]) != len(theirs[real]):
                made = f"makes {len(theirs[real])} storages and not {len(ours[op])}"
                self._leave_out(op, f"for real, {self.given.ops[op].name} {made}")
                continue
            for storage, life in zip(ours[op], theirs[real], strict=True):
                self._compare(op, storage, life)

    def profile(self) -> Profile:
        """Return the profile with what was found."""
        found = self.real.ops
        inside = [(op, found[real].workspace_bytes) for real, op in self.places.items()]
        storages = with_workspaces(replace(self.given, storages=tuple(self.storages)), inside)
        return replace(
            self.given,
            storages=storages,
            plain_peak_bytes=peak_of(storages, len(self.given.ops)),
            excluded=(*self.given.excluded, *self.left_out.values()),
        )

    def _pair(self) -> None:
        """Walk both forwards; where they part, go on behind the block in which they do."""
        at = place = 0
        while at < len(self.real.ops) and place < len(self.forward):
            op, name = self.forward[place], self.real.ops[at].name
            if self.given.ops[op].name == name:
                self.places[at] = op
                at, place = at + 1, place + 1
                continue
            reason = f"under stand-ins {self.given.ops[op].name} runs, and for real {name}"
            block = self._leave_out(op, reason)
            ends = self._ends(block, op)
            if ends is None:
                break
            at, place = max(at, ends[0]), bisect_left(self.forward, ends[1])

    def _leave_out(self, op: int, reason: str) -> str:
        block = _block(self.given, op)
        said = f"{block or 'the model'}: {reason}; it is left out"
        self.said.setdefault((block, "other ops"), said)
        self.left_out.setdefault(block, Exclusion(block, reason))
        return block

    def _ends(self, block: str, op: int) -> tuple[int, int] | None:
        """Where the running call of a block ends, for real and in the profile."""
        assert self.real.calls is not None
        calls = [u for u in self.given.units if u.name == block and u.enter <= op < u.exit]
        for unit in calls[-1:] if block else ():
            for call in self.real.calls.calls:
                if (call.name, call.call, call.root_call) == _which(unit):
                    return call.exit, unit.exit
        return None

    def _compare(self, op: int, storage: int, life: int) -> None:
        ours, theirs = self.storages[storage], self._lived(life, self.storages[storage])
        if abs(theirs.bytes - ours.bytes) > CUDA.block_bytes:  # less is not worth a word
            sizes = f"{format_bytes(theirs.bytes)}, not {format_bytes(ours.bytes)}"
            self._say(op, "size", f"makes {sizes} as its stand-in does; the real size counts")
        if theirs.natural_death != ours.natural_death:
            later = "longer" if theirs.natural_death > ours.natural_death else "shorter"
            self._say(
                op, "life", f"makes what lives {later} than its stand-in; the real life counts"
            )
        self.storages[storage] = theirs

    def _lived(self, life: int, ours: Storage) -> Storage:
        """The storage as it was for real; what something else holds dies as in the plain step."""
        real = self.real.lives.lives[life]
        natural = ours.death
        if real.death is not None and life not in self.real.held:
            natural = min(self.places.get(real.death, ours.natural_death), ours.death)
        found = replace(ours, bytes=real.bytes, natural_death=max(natural, ours.birth))
        return in_blocks((found,), blocks_of(self.device))[0]

    def _say(self, op: int, kind: str, what: str) -> None:
        name = self.given.ops[op].name
        where = _block(self.given, op) or "the model"
        self.said.setdefault((name, kind), f"{name} in {where} {what}")


def _which(unit: UnitCall) -> tuple[str, int, int]:
    return unit.name, unit.call, unit.root_call


def _by_birth(births: Iterable[int]) -> defaultdict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for number, birth in enumerate(births):
        found[birth].append(number)
    return found


def block_around(profile: Profile, unit: int) -> str:
    """Return the outermost numbered unit around a unit call (`layers.3`), a block as a rule."""
    parts = profile.units[unit].name.split(".")
    numbered = (i for i, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[: next(numbered, len(parts)) + 1])


def _block(profile: Profile, op: int) -> str:
    unit = profile.ops[op].unit
    return block_around(profile, unit) if unit >= 0 else ""
