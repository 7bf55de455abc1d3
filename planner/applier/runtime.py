"""What an applied plan does while the model runs: opens and closes tapes at unit edges.

Per thread, at most one tape is open. A segment opens only where replay can serve: gradients on,
no functional transform, no inference mode, no `torch.utils.checkpoint` around it. Whatever ends a
forward, also an error or an interrupt, closes the tape.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from planner.applier.marks import mark_running_call, marks_on_stack
from planner.applier.segments import actions_of, segment_name
from planner.applier.sharded import part_at_shards, warn_of_parts
from planner.documents import Exclusion, Plan
from planner.graph.address import Addresser, split_output, unit_of
from planner.replay.audit import Finding
from planner.replay.custom_ops import op_rules
from planner.replay.native.tape import NativeTape, new_tape, remove_stray_tapes
from planner.replay.recipe import Namer, Recipe
from planner.replay.replaying import ReplayCount
from planner.replay.stack import checkpoint_listens, remove_mode
from planner.replay.tape import Tape
from planner.replay.torch_versions import warn_if_untested
from planner.replay.units import UnitNames

EVERY_CALL = -1
"""`Boundary.call` of a hand-written plan: the segment opens at each call of the unit."""

KEEP_ALL = "*"
"""`Segment.keep` entry of a segment that is recorded but gives nothing up."""


class _Thread(threading.local):
    """What runs on this thread: the open segment, forwards under way, call counts."""

    tape: Tape | NativeTape | None = None  # none while a sharded unit gathers or frees
    segment: int = -1
    part: int = 0
    saving: int = 0  # parts of the segment in which autograd saved anything
    owner: Any = None
    home: int = -1  # mark of the call within which the tape was opened

    def __init__(self) -> None:
        self.calls: dict[int, list[int]] = {}  # marks of the forwards under way, by runtime
        self.counts: dict[int, dict[str, int]] = {}
        self.closed: list[Tape] = []  # closed while they handled an op: still to be taken off


_thread = _Thread()


class Runtime:
    """One plan at work on one model.

    Args:
        plan: the plan.
        least_drawn_bytes: random ops that draw less are not replayed, see `OpRules`.
    """

    def __init__(self, plan: Plan, least_drawn_bytes: int = 0) -> None:
        warn_if_untested()
        self.plan = plan
        self._rules = replace(
            op_rules(plan.custom_ops, plan.pins.never), least_drawn_bytes=least_drawn_bytes
        )
        self.replayed = ReplayCount()
        self.root: weakref.ref[nn.Module] | None = None
        self.enabled = True
        self.recipes = [self._recipe(number, 0) for number in range(len(plan.segments))]
        self.parts: dict[int, list[Recipe]] = {}  # of segments across edges of sharded units
        self.hooks: list[Any] = []
        self.parted: set[int] = set()
        self.actions = actions_of(plan.segments)
        self.left_out: tuple[Exclusion, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Runtime:
        return Runtime(self.plan, self._rules.least_drawn_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Runtime, (self.plan, self._rules.least_drawn_bytes)

    def audit(self, by_digest: bool = False) -> None:
        """Audit every run from now on; `findings` lists what differed.

        Args:
            by_digest: by checksums, which need no memory, when backward asks.
        """
        for number, recipe in enumerate(self.recipes):
            recipe.check = "checksums" if by_digest else "originals"
            recipe.address = partial(self._namer, number, 0)

    def check_first(self) -> None:
        """Hold each segment's first run against checksums; a difference is a `ReplayError`."""
        for recipe in self.recipes:
            recipe.check = "checksums of the first run"

    @property
    def findings(self) -> list[Finding]:
        """Replays that differed from their originals."""
        parts = (recipe for recipes in self.parts.values() for recipe in recipes)
        return [finding for recipe in (*self.recipes, *parts) for finding in recipe.findings]

    def leave_out(self, units: Collection[str], reason: str) -> None:
        """Leave alone the segments that begin or end at one of these units."""
        out = {
            number: unit
            for number, segment in enumerate(self.plan.segments)
            for unit in (segment.start.unit, segment.end.unit)
            if unit in units
        }
        self.left_out = tuple(Exclusion(unit, reason) for unit in dict.fromkeys(out.values()))
        self.actions = actions_of(self.plan.segments, out.keys())

    def edges(self) -> list[tuple[str, str]]:
        """(unit, edge) pairs at which something must happen, calls counted at `enter`."""
        counted = {unit for unit, _ in self.actions}
        return sorted({*self.actions, *((unit, "enter") for unit in counted)} - {("", "enter")})

    # -- events -------------------------------------------------------------------------------

    def forward_begins(self, root: nn.Module) -> None:
        """The model is called: counts start anew; a tape that was left behind is closed."""
        calls = _thread.calls.setdefault(id(self), [])
        if calls:  # interrupted ones are no longer there
            calls[:] = sorted(marks_on_stack().intersection(calls))
        if not calls:
            if _thread.owner is self:
                self._close(learn=False)
            _clear_away()
            _thread.counts[id(self)] = {}
            if self.root is None or self.root() is not root:
                self.root = weakref.ref(root)
            part_at_shards(root, self, self.hooks)
        calls.append(mark_running_call(self._forward_gone))
        self._act("", "enter", 0)

    def forward_ends(self) -> None:
        """The model's call returned or raised."""
        self._act("", "exit", 0)
        calls = _thread.calls.get(id(self))
        if calls:
            calls.pop()
        if not calls and _thread.owner is self:
            self._close(learn=False)

    def _forward_gone(self, number: int) -> None:
        """The frame of a forward is gone; if the forward was not ended, it was interrupted."""
        calls = _thread.calls.get(id(self))
        if calls and number in calls:
            del calls[calls.index(number) :]
            if not calls and _thread.owner is self:
                self._close(learn=False)
        _clear_away()

    def _unit_gone(self, number: int) -> None:
        """The same for a unit that was called by itself."""
        if _thread.owner is self and _thread.home == number:
            self._close(learn=False)
        _clear_away()

    def entered(self, unit: str) -> None:
        """A hooked unit is called."""
        counts = _thread.counts.setdefault(id(self), {})
        call = counts.get(unit, 0)
        counts[unit] = call + 1 if _thread.calls.get(id(self)) else 0
        self._act(unit, "enter", call)

    def left(self, unit: str) -> None:
        """A hooked unit's call returned or raised."""
        call = _thread.counts.get(id(self), {}).get(unit, 1) - 1
        self._act(unit, "exit", max(call, 0))

    def part(self, goes_on: bool) -> None:
        """The edge of a sharded unit: an open segment stops here, or goes on (see `sharded`)."""
        if _thread.owner is not self:
            return
        self._stop_recording(learn=True)
        if goes_on and _replay_can_serve():
            _thread.part += 1
            tape = new_tape(self._later_part(_thread.segment, _thread.part))
            tape.open()
            _thread.tape = tape

    def _act(self, unit: str, edge: str, call: int) -> None:
        for when, opens, number in self.actions.get((unit, edge), ()):
            if when in (call, EVERY_CALL):
                if opens:
                    self._open(number)
                elif _thread.owner is self and _thread.segment == number:
                    self._close(learn=True)

    # -- tapes --------------------------------------------------------------------------------

    def _open(self, number: int) -> None:
        if not self.enabled or not _replay_can_serve():
            return
        segment, calls = self.plan.segments[number], _thread.calls.get(id(self))
        if not calls and segment.start.unit != segment.end.unit:
            return  # a unit is called by itself: the segment's end may never be reached
        if _thread.owner is not None:
            if _thread.owner is not self and _thread.home in marks_on_stack():
                return
            self._close(learn=False)
        home = calls[-1] if calls else mark_running_call(self._unit_gone)
        tape = new_tape(self.recipes[number])
        tape.open()
        _thread.tape, _thread.segment, _thread.owner, _thread.home = tape, number, self, home
        _thread.part = _thread.saving = 0

    def _close(self, learn: bool) -> None:
        try:
            self._stop_recording(learn)
        finally:
            _thread.segment, _thread.owner = -1, None

    def _stop_recording(self, learn: bool) -> None:
        tape, number = _thread.tape, _thread.segment
        _thread.tape = None
        if tape is None:
            return
        _thread.saving += bool(tape.packs)
        if not tape.close(learn) and isinstance(tape, Tape):
            _thread.closed.append(tape)
        if _thread.saving > 1 and number not in self.parted:
            self.parted.add(number)
            warn_of_parts(segment_name(self.plan.segments[number]))

    def _later_part(self, number: int, part: int) -> Recipe:
        parts = self.parts.setdefault(number, [])
        while len(parts) < part:
            recipe = self._recipe(number, len(parts) + 1)
            first = self.recipes[number]
            if first.check != "none":
                recipe.check = first.check
                recipe.address = partial(self._namer, number, len(parts) + 1)
            parts.append(recipe)
        return parts[part - 1]

    def _recipe(self, number: int, part: int) -> Recipe:
        segment = self.plan.segments[number]
        keep_all = segment.keep == (KEEP_ALL,)
        kept: dict[str, set[int]] = {}
        for address in () if keep_all else segment.keep:
            op, output = split_output(address)
            kept.setdefault(op, set()).add(output)
        cut_depths = {cut.at: cut.depth for cut in segment.cuts}
        return Recipe(
            segment_name(segment),
            self.replayed,
            keeps=(lambda address, output: output in kept.get(address, ())) if kept else None,
            keep_all=keep_all,
            cut_depths=cut_depths,
            address=partial(self._namer, number, part) if kept or cut_depths else None,
            rules=self._rules,
        )

    def _namer(self, number: int, part: int) -> Namer:
        root = self.root() if self.root is not None else None
        names = UnitNames(root) if root is not None else None
        addresser = Addresser()
        before = (self.recipes[number], *self.parts[number][: part - 1]) if part else ()
        for record in (r for recipe in before for p in recipe.programs[:1] for r in p.records):
            addresser.next(unit_of(record.address), str(record.func))

        def name(op: str, before: str) -> str:
            if before:  # the op ran earlier; another unit runs now
                return addresser.next(unit_of(before), op)
            return addresser.next(names.running() if names is not None else "", op)

        return name


def _clear_away() -> None:
    """Take off what an interrupt left: tapes that were being opened, or closed, just then."""
    for tape in _thread.closed:
        remove_mode(tape)
    _thread.closed.clear()
    remove_stray_tapes(_thread.tape)


def _replay_can_serve() -> bool:
    return (
        torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]
        and not checkpoint_listens()
        and torch._C._get_tracing_state() is None
        and torch.autograd.forward_ad._current_level < 0
    )
