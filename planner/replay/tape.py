"""The dispatch mode of an open segment: runs its forward once, and drops saved tensors.

The first run of a segment is recorded: every op and every pack is written down (slow, complete, see
`recorder`). Later runs are followed: each op is compared with the recorded one, which costs a
fraction (see `follower`); from the first difference on the run is recorded again. A followed run
holds each outside value until the segment closes, so that whatever comes after a difference can
still be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from planner.replay.aside import let_transforms_in
from planner.replay.audit import audit
from planner.replay.content import sample
from planner.replay.digest import CheckedPlaceholder
from planner.replay.exposure import notice_arrays
from planner.replay.flow import Key
from planner.replay.follower import DIFFERS, Follower
from planner.replay.interleaving import Hooks, Interleaved, hooks_on_top, let_others_leave
from planner.replay.program import Pack, Program
from planner.replay.recipe import Recipe
from planner.replay.record import OpRecord
from planner.replay.recorder import Recorder, passthrough
from planner.replay.replaying import random_ops, replay_group
from planner.replay.run import SegmentRun, kept
from planner.replay.slicing import slice_segment
from planner.replay.sources import FREED, OVERWRITTEN, Source, checked_version
from planner.replay.stack import push_hooks, remove_hooks, remove_mode
from planner.replay.state import Placeholder
from planner.replay.statistics import wait_for_backward
from planner.replay.transparent_mode import TransparentMode
from planner.replay.views import on_storage

let_transforms_in()
let_others_leave()
notice_arrays()


class Tape(TransparentMode, Interleaved):
    """One run of one segment, from `open` to `close`.

    Owns the run, and a follower or a recorder of it. Autograd's nodes hold the tape through its
    hooks, so that `close` lets go of all three: what backward needs is held by placeholders.

    Args:
        followed: a run that something else followed so far, and a follower that goes on with it.
    """

    stands_aside = False

    def __init__(self, recipe: Recipe, followed: tuple[SegmentRun, Follower] | None = None) -> None:
        super().__init__()
        self._paused = self._keeps_all = False
        self._below: Hooks | None = None
        self._run: SegmentRun | None = followed[0] if followed else SegmentRun(recipe)
        self._run.state.open_run = self
        self._follower: Follower | None = followed[1] if followed else None
        self._recorder: Recorder | None = None
        if recipe.programs and followed is None and not recipe.record_anew:
            self._follower = Follower(self._run, recipe.programs[0])
        elif followed is None:
            self._recorder = Recorder(self._run)

    # -- opening and closing ------------------------------------------------------------------

    def open(self) -> None:
        """Start listening: ops through the dispatch mode, packs through the hooks."""
        self._below = hooks_on_top()
        push_hooks(self.pack, unpack)
        self.stands_aside = self.keeps_place = True  # see `aside` and `interleaving`
        self.__enter__()

    def close(self, learn: bool = True) -> bool:
        """Stop listening; leave behind what the replay needs and nothing else.

        Args:
            learn: remember the program for later runs (not after an error).

        Returns:
            Whether the tape is off the stack of modes; if not, it is handling an op just now, and
            lets all others pass until it is removed.
        """
        self.stands_aside = self.keeps_place = False
        remove_hooks(self.pack)
        removed = remove_mode(self)
        self._paused = True
        run, follower = self._run, self._follower
        assert run is not None
        if follower is not None and follower.complete:
            _finish(run, follower.program, False, learn)
        else:
            _finish(run, self._record_on().compile(), True, learn)
        run.clear()
        self._run = self._follower = self._recorder = None
        return removed

    # -- what an open run shows ---------------------------------------------------------------

    @property
    def records(self) -> Sequence[OpRecord]:
        """The ops so far."""
        return self._open_half().records

    @property
    def packs(self) -> Sequence[Pack]:
        """What autograd packed so far."""
        return self._open_half().packs

    def value_now(self, key: Key) -> torch.Tensor:
        """Replay a dropped value while the segment is still open (a gradient inside a block)."""
        run, records = self._run, self.records
        assert run is not None
        outside = {k: tensor for k, (tensor, _) in run.flow.outside.items()}
        valid = {k: v.tensor for k, v in run.kept.items() if v.tensor._version == v.version}
        held = frozenset((*(k for k in outside if k[1]), *valid))
        group = slice_segment([r.flow_op() for r in records], [key], held).groups[0]
        have = {**outside, **valid, **run.copies}
        env: dict[Key, torch.Tensor] = {k: have[k] for k in group.sources}
        self._paused = True
        try:
            replay_group(group, records, env, run.state.step_values, run.state.count)
        finally:
            self._paused = False
        return env[key]

    def _open_half(self) -> Follower | Recorder:
        half = self._recorder or self._follower
        assert half is not None
        return half

    # -- every op, every pack -----------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Follow or record one op."""
        if id(func) in passthrough or self._paused:
            return func._op(*args, **kwargs) if kwargs else func._op(*args)
        follower = self._follower
        if follower is not None:
            out = follower.run_op(func, types, args, kwargs)
            if out is not DIFFERS:
                return out
        return self._record_on().record(func, types, args, kwargs or {})

    def kernel_launched(self) -> None:
        """A kernel that no dispatcher sees was launched (see `launches`)."""
        if self._follower is None or not self._follower.launched():
            self._record_on().record_launch()

    def memory_exposed(self, tensor: torch.Tensor) -> None:
        """An array shares a tensor's memory from here on (see `exposure`)."""
        if self._paused or (self._follower is not None and self._follower.exposed(tensor)):
            return
        recorder = self._record_on()
        self._paused = True
        try:
            recorder.record_exposure(tensor)
        finally:
            self._paused = False

    def pack(self, tensor: torch.Tensor) -> Any:
        """Decide the fate of a tensor that autograd saves: a placeholder, or the tensor."""
        if self._below is not None:
            return self._pack_through(self._below, tensor)
        if self._paused or self._keeps_all:
            return kept(tensor)
        if forward_ad._current_level >= 0:  # a replay would lose the tangent
            return kept(tensor)
        return self._pack(tensor)

    def hooks_below_changed(self) -> None:
        """Hooks that were opened before the segment are closed: what they would see has changed."""
        self._below = hooks_on_top()

    def modes_below_changed(self) -> None:
        """A mode that the segment was opened in is left: replays could not tell where it applies,
        so that what is packed from here on stays with autograd.
        """
        self._keeps_all = True
        if self._run is not None:
            self._run.recipe.leaves_mode()

    def _pack(self, tensor: torch.Tensor) -> Any:
        follower = self._follower
        if follower is not None:
            packed = follower.pack(tensor)
            if packed is not DIFFERS:
                return packed
        return self._record_on().record_pack(tensor)

    def _pack_through(self, below: Hooks, tensor: torch.Tensor) -> Any:
        """Pack a tensor for hooks that were opened before the segment (HOOKS BELOW)."""
        if not (self._paused or self._keeps_all):
            packed = self._pack(tensor)
            if isinstance(packed, Placeholder):
                return PackedThrough(below, packed)
        return PackedThrough(below, below.pack(tensor))

    def _record_on(self) -> Recorder:
        """Return the recorder; from here on the run is recorded."""
        if self._recorder is None:
            follower = self._follower
            assert self._run is not None and follower is not None
            self._recorder = Recorder(self._run, follower.records, follower.packs)
            self._follower = None
        return self._recorder


def _finish(run: SegmentRun, program: Program, recorded: bool, learn: bool) -> None:
    """Hand what replays need over to the run's state, and remember the program."""
    state = run.state
    overwritten: set[Key] = set()
    if recorded:
        overwritten = run.flow.overwritten(program.sources) - run.copies.keys()
    if learn and not overwritten:
        run.recipe.learned(program)
    sources: dict[Key, Source] = {}
    if program.drops:
        sources = {key: _source(run, program, key, recorded) for key in program.sources}
        for key in overwritten:
            if sources[key].version != FREED:
                sources[key] = Source(sources[key].tensor, OVERWRITTEN, None)
    state.close(program, sources)
    if program.drops and program.statistics:
        wait_for_backward(state, program)
    if run.originals:
        finding = audit(state, program, run.originals)
        if finding is not None:
            run.recipe.findings.append(finding)
    drawing = [random_ops(group, program.records) for group in program.groups]
    state.step_values.generator_states.close(drawing)


def _source(run: SegmentRun, program: Program, key: Key, recorded: bool) -> Source:
    """Return a value that a replay will read, as it is now."""
    copy = run.copies.get(key)
    if copy is not None:
        return Source(copy, None, None)
    kept = run.kept.get(key)
    if kept is not None:
        tensor, version = kept.tensor.detach(), kept.version
        return Source(tensor, version, sample(tensor, whole=recorded))
    tensor, version = run.flow.outside[key]
    storage = run.flow.storages[key[0]]
    if tensor.numel() and not storage.nbytes():
        return Source(tensor.detach(), FREED, None)
    if tensor.untyped_storage()._cdata == storage._cdata:
        tensor = tensor.detach()  # also of a leaf: its `.data` may be replaced later
    else:  # it has been replaced already
        arg = next(a for r in program.records for a in r.tensor_args if a.key == key)
        tensor = on_storage(storage, arg)
        version = tensor._version
    return Source(tensor, version, run.samples.get(key) or sample(tensor, whole=recorded))


class PackedThrough(NamedTuple):
    """A tensor that also went, or goes once it is replayed, through hooks below the tape's."""

    hooks: Hooks
    packed: Any


def unpack(packed: Any) -> torch.Tensor:
    """Give autograd back what `Tape.pack` stored."""
    if type(packed) is Placeholder:
        return packed.state.value(packed.arg)
    if type(packed) is CheckedPlaceholder:
        return packed.value()
    if type(packed) is PackedThrough:
        hooks, inner = packed
        if isinstance(inner, Placeholder):
            inner = hooks.pack(unpack(inner))
        return hooks.unpack(inner)
    return checked_version(*packed)
