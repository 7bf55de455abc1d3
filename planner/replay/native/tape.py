"""An open segment that the C++ core follows; the Python path records, and takes over if need be.

`new_tape` opens each segment with one or the other. The core follows a program that was recorded
before, where nothing else needs to see the ops; from the first difference, all that the core knows
goes to a `Tape` (see `resume`), to which the core then passes each op and pack.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from planner.replay.interleaving import hooks_on_top
from planner.replay.native.connect import core
from planner.replay.native.describe import Unsupported, describe
from planner.replay.native.resume import PythonState, resume
from planner.replay.program import Pack, Program
from planner.replay.recipe import Recipe, Tables
from planner.replay.stack import push_hooks, remove_hooks, remove_strays
from planner.replay.surroundings import Surroundings
from planner.replay.tape import Tape

PATIENCE = 2
"""After so many runs in a row that were handed over, the Python path follows a program."""


class NativeTape:
    """One run of one segment that the core follows, from `open` to `close`.

    Args:
        tables: how to follow; None to record, through the core, what it will follow later.
    """

    __slots__ = ("_python", "_recipe", "_surroundings", "_tables", "run")

    def __init__(self, recipe: Recipe, tables: Tables | None) -> None:
        self._recipe = recipe
        self._tables = tables
        self._surroundings = Surroundings.here()
        self._python: Tape | None = None
        self.run: Any = core().Run()
        if tables is None:
            self._python = Tape(recipe)
            self.run.begin_in_python(self, self._python)
        else:
            replay = (self._surroundings, recipe.count)
            self.run.begin(tables.template, self, recipe.name, replay)

    def open(self) -> None:
        """Start listening: ops through the dispatch key, packs through the hooks."""
        self.run.listen(push_hooks, self.run.pack, core().unpack)

    def close(self, learn: bool = True) -> bool:
        """Stop listening; leave behind what the replay needs and nothing else.

        Args:
            learn: remember the program for later runs (not after an error).

        Returns:
            Whether the tape is off the stack of modes, on which it never was.
        """
        self.run.silence()
        remove_hooks(self.run.pack)
        try:
            if self.run.finish():
                assert self._tables is not None
                self._tables.handed_over.clear()
                if learn:
                    self._recipe.learned(self._tables.program)
            else:
                self.run.hand_over()
                if self._python is not None:  # else an interrupt came while it was handed over
                    self._python.close(learn)
        finally:
            self.run.clear()
        return True

    @property
    def packs(self) -> Sequence[Pack]:
        """What autograd packed so far."""
        if self._python is not None:
            return self._python.packs
        assert self._tables is not None
        return self._tables.program.packs[: self.run.packed]

    @property
    def python(self) -> Tape:
        """The tape that takes the run over."""
        if self._python is None:
            assert self._tables is not None
            program, numbering = self._tables.program, self._tables.numbering
            exported = self.run.export()
            run, follower = resume(self._recipe, program, numbering, exported, self._surroundings)
            self._python = Tape(self._recipe, (run, follower))
            self._tables.handed_over.append(exported["at"])
            self.run.delegate(PythonState(run.state, program))
        return self._python

    def kernel_launched(self) -> None:
        """A kernel that no dispatcher sees was launched: no program that the core follows has."""
        self.run.hand_over()
        self.python.kernel_launched()

    def memory_exposed(self, tensor: torch.Tensor) -> None:
        """An array shares a tensor's memory: no program that the core follows has this."""
        self.run.hand_over()
        self.python.memory_exposed(tensor)


def new_tape(recipe: Recipe) -> Tape | NativeTape:
    """Return the tape of a run of a segment, not yet open.

    Some of torch's composite ops take another path while a dispatch mode is on, so that each run
    leaves the path that was recorded under one. Then one is recorded through the core, without a
    mode, unless addresses must agree with those of a profile.
    """
    if core() is None or not _may_follow() or not recipe.programs:
        return Tape(recipe)
    tables = _tables(recipe, recipe.programs[0])
    if tables.template is None or recipe.check != "none":
        return Tape(recipe)
    if recipe.times_anew and recipe.address is not None:
        return Tape(recipe)
    if recipe.record_anew:
        return NativeTape(recipe, None)
    if len(tables.handed_over) < PATIENCE:
        return NativeTape(recipe, tables)
    return NativeTape(recipe, None) if recipe.address is None else Tape(recipe)


def remove_stray_tapes(mine: Tape | NativeTape | None) -> None:
    """Close what an interrupt left open while it was being opened; `mine` stays."""
    loaded = core()
    if loaded is None:
        remove_strays((Tape,), mine)
        return
    remove_strays((Tape, loaded.Run), mine.run if isinstance(mine, NativeTape) else mine)
    stray = loaded.current()
    if stray is not None and stray is not mine:
        stray.run.clear()


def _may_follow() -> bool:
    """Whether the core sees just what a dispatch mode would see, and no hooks wait below its own.

    Dynamo compiles for the thread's dispatch keys, to which the core adds one. So where anything
    was given to `torch.compile`, the core stands aside.
    """
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    compiled = any(backend is not None for backend in backends.values())  # None: a disabled one
    frames = getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0)
    others = torch._C._len_torch_dispatch_stack() or hooks_on_top() is not None
    return not others and not compiled and frames == 0


def _tables(recipe: Recipe, program: Program) -> Tables:
    """Return the core's tables of a program, made when it is first followed."""
    for tables in recipe.tables:
        if tables.program is program:
            return tables
    try:
        described, numbering = describe(program)
        made = Tables(program, core().template(described), numbering, "", [])
    except (Unsupported, RuntimeError, TypeError) as error:
        made = Tables(program, None, None, str(error), [])
    alive = {id(other) for other in recipe.programs}
    recipe.tables[:] = [made, *(t for t in recipe.tables if id(t.program) in alive)]
    return made
