"""Compares the arguments of a run's ops with the recorded ones, on the hot path.

Arguments are the same when they hold the same values, through the same views, and constants are
equal. What may differ from step to step is taken from this step (TAKEN OVER): numbers (`x *
self.alpha`), and the sizes of tensors and of results, as long as the same values flow into the same
ops. Anything else ends the following.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from planner.replay.content import sample
from planner.replay.flow import PLAIN, Arg, bits_of
from planner.replay.matching import (
    COMPARED,
    all_taken,
    same_bits,
    same_constant,
    same_geometry,
    same_kind,
    same_tensor,
    taken_over,
)
from planner.replay.opaque import keeps_results
from planner.replay.program import Program
from planner.replay.record import Call, OpRecord
from planner.replay.run import SegmentRun
from planner.replay.surroundings import settings_now
from planner.replay.traits import traits_of
from planner.replay.trees import Many


class Arguments:
    """The values that a run has read so far, and how they compare with a program's.

    Attributes:
        program: the recorded run that is followed.
        known, base, pins: the flow's own collections (slots by address, version bases, pins).
        resized: whether some tensor had another geometry than the recorded one.
    """

    __slots__ = ("_run", "_settings", "base", "known", "pins", "program", "resized")

    def __init__(self, run: SegmentRun, program: Program) -> None:
        self._run = run
        self._settings = (*run.state.surroundings.choices, True)  # none opens under no_grad
        self.program = program
        self.resized = False
        flow = run.flow
        self.known, self.base, self.pins = flow.known, flow.base, flow.pins

    def same(self, record: OpRecord, at: int, types: Any, args: Any, kwargs: Any) -> bool:
        """Whether op number `at` is the recorded one; enters what comes from outside."""
        if types or record.opaque:
            rules = self._run.recipe.rules
            return record.opaque and (
                record.aside or keeps_results(rules, traits_of(record.func), types, args, kwargs)
            )
        if record.settings and not self._same_settings(record):
            return False
        try:
            return self._same_op(record, at, args, kwargs)
        except (AttributeError, RuntimeError, NotImplementedError):
            return False  # no tensor, or one without storage or version

    def _same_settings(self, record: OpRecord) -> bool:
        """Whether the settings by which torch picks this op's kernel are the recorded ones."""
        wanted = record.choices or self._settings
        return all(wanted[i] == now for i, now in settings_now(record.settings))

    def _same_op(self, record: OpRecord, at: int, args: Any, kwargs: Any) -> bool:
        if record.relabelled and not _same_meaning(record, args, kwargs):
            return False
        expected = record.args
        if len(expected) != len(args):
            return False
        changed = False
        known: Any = self.known
        base = self.base
        for wanted, got in zip(expected, args, strict=True):
            kind = type(wanted)
            if kind is Arg:
                slot, _, size, stride, offset, dtype, counter, first, _, _, _ = wanted
                found = known.get(got.untyped_storage()._cdata)
                if first:
                    if not self.same_outside(wanted, got, found):
                        return False
                elif (
                    found != slot or got._version - base[slot] != counter or got.dtype is not dtype
                ):
                    return False
                elif got.size() != size or got.stride() != stride or got.storage_offset() != offset:
                    self.resized = True
            elif wanted is not got and not (
                kind is type(got)
                and kind in COMPARED
                and wanted == got
                and (wanted or kind is not float)  # zeros have signs
            ):
                if same_constant(self, wanted, got):
                    continue
                if isinstance(wanted, Many):  # other values, or other lists of them
                    return False
                changed = True
        if changed or self.resized or kwargs or record.kwargs:
            return self._same_rest(record, at, args, kwargs or {}, changed)
        return True

    def _same_rest(
        self, record: OpRecord, at: int, args: Any, kwargs: dict[str, Any], changed: bool
    ) -> bool:
        """Compare keywords, too, and take over what differs."""
        if len(record.kwargs) != len(kwargs):
            return False
        for (name, wanted), (other, got) in zip(record.kwargs, kwargs.items(), strict=True):
            if name != other:
                return False
            if same_constant(self, wanted, got):
                continue
            if isinstance(wanted, (Arg, Many)):
                return False
            changed = True
        return not (changed or self.resized) or self._take_over(record, at, args, kwargs)

    def _take_over(
        self, record: OpRecord, at: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Note this step's sizes and numbers (TAKEN OVER); returns whether that is possible."""
        fixed = record.again is not None and not traits_of(record.func).blank
        if fixed or (self.resized and not _may_be_resized(record.func)):
            return False
        trees = [taken_over(w, g) for w, g in zip(record.args, args, strict=True)]
        named = [(name, taken_over(w, kwargs[name])) for name, w in record.kwargs]
        if not all_taken(trees) or not all_taken(tree for _, tree in named):
            return False
        values = self._run.state.step_values
        values.calls[at] = Call(record.func, tuple(trees), tuple(named))
        values.resized = self.resized
        return True

    def forget(self, slots: int) -> None:
        """Take back what a comparison that failed has noted, beyond the first `slots` storages."""
        self._run.flow.roll_back(slots)
        self.resized = self._run.state.step_values.resized

    def same_outside(self, wanted: Arg, got: torch.Tensor, slot: int | None) -> bool:
        """Compare the first sight of a value from outside, and enter it."""
        if not same_kind(wanted, got):
            return False
        flow = self._run.flow
        if wanted.version == 0:
            if slot is not None:
                return False
            pin: Any = got.untyped_storage()._weak_ref()
            self.pins.append(pin)
            self.known[pin] = wanted.slot
            self.base.append(got._version)
        elif slot != wanted.slot or got._version - self.base[slot] != wanted.counter:
            return False
        self.note_geometry(wanted, got)
        key = (wanted.slot, wanted.version)
        flow.outside[key] = (got, got._version)
        flow.storages[wanted.slot] = got.untyped_storage()
        if key in self.program.source_uses:
            whole = wanted.slot in self.program.exposed
            self._run.samples[key] = sample(got, whole=whole, even_views=whole)
        return True

    def note_geometry(self, wanted: Arg, got: torch.Tensor) -> None:
        """Take note where a tensor has another geometry than the recorded one."""
        if not self.resized:
            self.resized = not same_geometry(wanted, got)

    def same_pack(self, wanted: Arg, tensor: torch.Tensor) -> Arg | None:
        """Return what autograd packs, if it is the recorded value."""
        if type(tensor) not in PLAIN:
            return None
        try:
            if not same_tensor(self, wanted, tensor) or bits_of(tensor) != wanted.bits:
                return None
        except (RuntimeError, NotImplementedError):
            return None
        if not self.resized:
            return wanted
        self._run.state.step_values.resized = True
        found: Arg = taken_over(wanted, tensor)
        return found


def _same_meaning(record: OpRecord, args: tuple[Any, ...], kwargs: Any) -> bool:
    return same_bits(record.args, args) and same_bits(
        tuple(a for _, a in record.kwargs), tuple((kwargs or {}).values())
    )


@cache
def _may_be_resized(func: Any) -> bool:
    """Whether an op does the same with tensors of other sizes: same flow, as many results."""
    traits = traits_of(func)
    lists = any("List" in str(result.type) for result in func._schema.returns)
    return not (traits.custom or lists)
