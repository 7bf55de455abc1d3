"""One run of a segment while it is open: what its recorder and its follower share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from planner.replay.audit import Original
from planner.replay.content import Sample
from planner.replay.digest import CheckedPlaceholder, digest
from planner.replay.flow import PLAIN, Arg, Flow, Key
from planner.replay.recipe import Recipe
from planner.replay.record import OpRecord, written_tensors
from planner.replay.state import Placeholder, SegmentState
from planner.replay.statistics import about_to_change
from planner.replay.streams import stream_now
from planner.replay.traits import traits_of
from planner.replay.trees import tensors_in
from planner.replay.views import copy_storage


class Kept(NamedTuple):
    """A tensor that stays with autograd, and its version when it was packed."""

    tensor: torch.Tensor
    version: int


class SegmentRun:
    """What is held between the opening and the closing of a segment.

    Attributes:
        recipe: the segment over all its runs.
        flow: which tensor holds which value.
        state: what the run leaves behind for backward.
        kept: values made inside that the plan keeps.
        copies: outside values that were copied before an op overwrote them.
        originals: dropped tensors, where replays are compared with them.
        samples: content of sources when they were first read, in a followed run.
        stream: the stream on which the segment was opened.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.flow = Flow()
        self.state = SegmentState(recipe.name, recipe.count)
        self.kept: dict[Key, Kept] = {}
        self.copies: dict[Key, torch.Tensor] = {}
        self.originals: dict[Key, Original] = {}
        self.samples: dict[Key, Sample | None] = {}
        self.stream = stream_now()

    def drop(self, arg: Arg, tensor: torch.Tensor) -> Placeholder:
        """Return what stands for a dropped tensor in autograd's graph."""
        recipe, state = self.recipe, self.state
        key = (arg.slot, arg.version)
        state.add_placeholder(key)
        if recipe.check == "none":
            return Placeholder(state, arg, key)
        if recipe.checks_originals:
            self.originals[key] = Original(arg, tensor)
        if recipe.checks_checksums:
            return CheckedPlaceholder(state, arg, key, digest(tensor), recipe)
        return Placeholder(state, arg, key)

    def before_hidden_writes(self, hidden: Sequence[int], args: tuple[Any, ...]) -> None:
        """Save the statistics that earlier reads, here or in other runs, will need again."""
        for position in hidden:
            about_to_change(args[position])
            slot = self.flow.known.get(args[position].untyped_storage()._cdata)
            self.copy_outside(tuple(key for key in self.flow.outside if key[0] == slot))

    def copy_outside(self, keys: tuple[Key, ...]) -> None:
        """Copy on write: an outside value that a replay may read is about to be overwritten."""
        for key in keys:
            if key not in self.copies:
                self.copies[key] = copy_storage(self.flow.outside[key][0])

    def keep(self, record: OpRecord, args: Any, kwargs: Any, out: Any) -> None:
        """Hold the values of an op that the plan keeps, as sources."""
        made = list(tensors_in(out))
        for key in record.keep:
            if key in record.makes:
                self.kept[key] = Kept(made[record.outs.index(key[0])], 0)
            else:  # written in place; the counter moves once this op has returned
                for tensor in written_tensors(traits_of(record.func), args, kwargs or {}):
                    if self.flow.known[tensor.untyped_storage()._cdata] == key[0]:
                        self.kept[key] = Kept(tensor, tensor._version + 1)

    def clear(self) -> None:
        """Let go of everything that backward does not need."""
        for held in (self.kept, self.copies, self.originals, self.samples):
            held.clear()
        self.flow.close()


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias without a graph, with the same version counter.

    A node that held its own output with the graph would never be freed.
    """
    if tensor.grad_fn is None:
        return tensor
    if type(tensor) not in PLAIN:  # a subclass has a dispatch of its own
        with _disable_current_modes():
            return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def kept(tensor: torch.Tensor) -> Kept:
    """Return what a tensor that stays with autograd is packed as."""
    return Kept(without_graph(tensor), tensor._version)
