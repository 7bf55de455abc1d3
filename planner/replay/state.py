"""What one run of a segment leaves behind for backward, and the replay itself.

Autograd's graph holds `Handle`s in place of the tensors that were given up; a handle holds the
run's `SegmentState`; the state holds the sources. Nothing points the other way, so that everything
goes with the graph.

Freeing follows backward: a group's sources go as soon as its replay has used them (unless the
graph is to be kept), a replayed value goes with the last handle that asks for it, and a handle
goes when autograd releases the node that saved it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from planner.errors import ReplayError
from planner.replay.content import Watch
from planner.replay.flow import Arg, Key, copy_storage, rebuild
from planner.replay.program import Program
from planner.replay.record import OpRecord, build_tree, tensors_in
from planner.replay.slicing import Group
from planner.replay.surroundings import Surroundings, run_below, run_chosen
from planner.replay.traits import Random, generator_of

OVERWRITTEN = -1
"""Version of a source whose memory was overwritten out of sight: it cannot be used."""

GIVEN_BACK = -2
"""Version of a source whose memory was freed before the segment closed: whether the same numbers
will be there again when backward asks is not known."""

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph


class Source(NamedTuple):
    """A held value that a replay reads, as the forward left it.

    `version` is None for a copy, which nobody else can write into.
    """

    tensor: torch.Tensor
    version: int | None
    seen: Watch | None


class Handle:
    """Stands in autograd's graph for one tensor that was given up."""

    __slots__ = ("arg", "key", "state")

    def __init__(self, state: SegmentState, arg: Arg, key: Key) -> None:
        self.state = state
        self.arg = arg
        self.key = key

    def __del__(self) -> None:
        if hasattr(self, "key"):  # else an interrupt hit its making
            self.state.forget(self.key)


class SegmentState:
    """Sources, replayed values and bookkeeping of one run of one segment.

    Attributes:
        name: the segment's label, for errors.
        replayed_ops: counts replayed ops (shared by all runs of an applied plan).
    """

    __slots__ = (
        "cell_uses",
        "surroundings",
        "counter",
        "done",
        "left",
        "lock",
        "made",
        "memo",
        "name",
        "open_tape",
        "overrides",
        "program",
        "rng",
        "source_uses",
        "sources",
        "served",
        "__weakref__",
    )

    def __init__(self, name: str, counter: list[int]) -> None:
        self.name = name
        self.counter = counter
        self.lock = threading.RLock()
        self.surroundings = Surroundings.here()
        self.program: Program | None = None
        self.open_tape: Any = None
        self.sources: dict[Key, Source] = {}
        self.rng: dict[int, torch.Tensor] = {}
        self.overrides: dict[int, tuple[Any, Any]] = {}
        self.memo: dict[Key, torch.Tensor] = {}
        self.made: dict[Key, int] = {}  # versions of what is in `memo`
        self.left: dict[Key, int] = {}
        self.served: dict[Key, int] = {}
        self.source_uses: dict[Key, int] = {}
        self.cell_uses: dict[Key, int] = {}
        self.done: set[int] = set()

    def bind(self, program: Program) -> None:
        """Attach the program once the segment is closed; `sources` is filled by the tape."""
        self.program = program
        self.source_uses = dict(program.source_uses)
        self.cell_uses = dict(program.cell_uses)

    def hold(self, key: Key, base: torch.Tensor) -> None:
        """Serve a value that was given up from this tensor, as long as a handle asks for it."""
        if self.left.get(key, 0) > 0:
            self.memo[key], self.made[key] = base, version_of(base)

    def forget(self, key: Key) -> None:
        """A handle of this value is gone."""
        left = self.left.get(key, 0) - 1
        self.left[key] = left
        if left <= 0 and self.cell_uses.get(key, 0) <= 0:
            self.memo.pop(key, None)

    def value(self, arg: Arg) -> torch.Tensor:
        """Return the tensor that a handle stands for, replaying its group if need be."""
        key = (arg[0], arg[1])
        base = self.memo.get(key)
        if base is not None and version_of(base) != self.made[key]:
            raise self._spoiled(base, self.made[key])
        if base is not None and not self.served:
            there: torch.Tensor = rebuild(base, arg)
            return there
        with self.lock:
            base = self.memo.get(key)
            if base is None:
                base = run_below(self.surroundings, self._make, key)
            view: torch.Tensor = rebuild(base, arg)
            if self.served:
                self._count_serving(key)
            return view

    def _spoiled(self, base: torch.Tensor, made: int) -> ReplayError:
        return ReplayError(
            f"segment {self.name}: a tensor of shape {tuple(base.shape)} that backward needs was "
            "modified in place during backward",
            numbers=f"version {base._version} found, version {made} expected",
            cause="a backward function or a hook wrote into a tensor that autograd had saved",
            fix="clone the tensor before writing",
            unit=self.name,
        )

    def _make(self, key: Key) -> torch.Tensor:
        if self.program is None:
            made: torch.Tensor = self.open_tape.value_now(self, key)
            return made
        self._run(self.program.owner[key], _keeps_graph())
        return self.memo[key]

    def _count_serving(self, key: Key) -> None:
        """When the graph is kept, a value goes after each handle has been served once."""
        if key in self.served:
            self.served[key] += 1
            if self.served[key] >= self.left.get(key, 0) and self.cell_uses.get(key, 0) <= 0:
                del self.served[key]
                self.memo.pop(key, None)

    def _run(self, number: int, keep_graph: bool) -> None:
        program = self.program
        assert program is not None
        group = program.groups[number]
        env: dict[Key, torch.Tensor] = {}
        for key in group.sources:
            env[key] = self.checked_source(key)
        for key in group.cells:
            if key not in self.memo:
                self._run(program.owner[key], keep_graph)
            env[key] = self.memo[key]
        if keep_graph or number in self.done:
            self.play(group, program.records, env, None)
        else:
            self.done.add(number)
            self.play(group, program.records, env, self)
        for key in group.makes:
            if self.left.get(key, 0) > 0 or self.cell_uses.get(key, 0) > 0:
                self.memo[key] = env[key]
                self.made[key] = version_of(env[key])
                if keep_graph:
                    self.served[key] = 0

    def release(self, key: Key) -> None:
        """One group is done with a source or a cell of another group."""
        uses = self.source_uses.get(key)
        if uses is not None:
            self.source_uses[key] = uses - 1
            if uses <= 1:
                self.sources.pop(key, None)
            return
        uses = self.cell_uses.get(key)
        if uses is not None:
            self.cell_uses[key] = uses - 1
            if uses <= 1 and self.left.get(key, 0) <= 0:
                self.memo.pop(key, None)

    def checked_source(self, key: Key) -> torch.Tensor:
        """Return a held source, or raise when it was modified since the forward read it."""
        held = self.sources.get(key)
        if held is None:
            raise ReplayError(
                f"segment {self.name}: a value that its replay needs is gone",
                cause="backward ran twice through a graph that was not kept",
                fix="pass retain_graph=True to the first backward",
                unit=self.name,
            )
        tensor, version, seen = held
        gone = tensor.numel() > 0 and not tensor.untyped_storage().nbytes()
        if version == GIVEN_BACK or gone:
            raise ReplayError(
                f"segment {self.name}: the memory of a tensor of shape {tuple(tensor.shape)} that "
                "its replay reads was given back",
                cause="a sharding wrapper freed a gathered parameter before this backward",
                fix="let no segment reach across the edge of a wrapped unit, or exclude the unit "
                f"from the plan: planner.plan(..., save=[{self.name!r}])",
                unit=self.name,
            )
        if version == OVERWRITTEN:
            raise ReplayError(
                f"segment {self.name}: the memory of a tensor of shape {tuple(tensor.shape)} that "
                "its replay reads was overwritten during the forward",
                cause="code that torch does not see wrote into it (NumPy, a C library)",
                fix=f"exclude the unit from the plan: planner.plan(..., save=[{self.name!r}])",
                unit=self.name,
            )
        if version is not None and tensor._version != version:
            raise ReplayError(
                f"segment {self.name}: a tensor of shape {tuple(tensor.shape)} that its replay "
                "reads was modified in place after the forward",
                numbers=f"version {tensor._version} found, version {version} expected",
                cause="code outside the segment wrote into it (an in-place op, an optimizer step)",
                fix=f"exclude the unit from the plan: planner.plan(..., save=[{self.name!r}])",
                unit=self.name,
            )
        if seen is not None and seen.look(tensor) != seen.seen:
            raise ReplayError(
                f"segment {self.name}: a tensor of shape {tuple(tensor.shape)} that its replay "
                "reads holds other numbers than in the forward",
                numbers=f"version {tensor._version} then and now",
                cause="it was written out of torch's sight (through `.data`, NumPy, a C library)",
                fix="write into it after the backward, or exclude the unit from the plan: "
                f"planner.plan(..., save=[{self.name!r}])",
                unit=self.name,
            )
        return tensor

    def play(
        self,
        group: Group[Key],
        records: tuple[OpRecord, ...] | list[OpRecord],
        env: dict[Key, torch.Tensor],
        releasing: SegmentState | None,
    ) -> None:
        """Run a group's steps on `env` (value -> base tensor), freeing as it goes."""
        borrowed = {*group.sources, *group.cells} if releasing is not None else ()
        for step in group.steps:
            record = records[step.op]
            originals = {key: env[key] for key in step.copies} if step.copies else None
            for key in step.copies:
                env[key] = copy_storage(env[key])
            if record.plain and not self.overrides:
                args = [
                    (env[a[0], a[1]] if a[10] else rebuild(env[a[0], a[1]], a))
                    if type(a) is Arg
                    else a
                    for a in record.args
                ]
                out = record.call(*args)
                del args
            else:
                out = self._call(record, step.op, env)
            for old, new in record.writes:
                env[new] = env[old]
            if originals:
                env.update(originals)
            if type(out) is torch.Tensor:
                if record.makes:
                    env[record.makes[0]] = out
            else:
                # Not strict: an op recorded under `no_grad` may return one more tensor now.
                for slot, made in zip(record.outs, tensors_in(out), strict=False):
                    if slot >= 0:
                        env[slot, 0] = made
                        del made
            del out
            for key in step.frees:
                env.pop(key, None)
                if releasing is not None and key in borrowed:
                    releasing.release(key)
        self.counter[0] += len(group.steps)

    def _call(self, record: OpRecord, number: int, env: dict[Key, torch.Tensor]) -> Any:
        """Run an op with lists, keywords, a generator, choices or numbers of this step's own."""

        def tensor(arg: Arg) -> Any:
            return rebuild(env[arg.key], arg)

        func = record.func
        if record.again is not None:
            func, args, kwargs = record.again
        else:
            args, kwargs = self.overrides.get(number, (record.args, record.kwargs))
        built = [build_tree(a, tensor) for a in args]
        named = {name: build_tree(a, tensor) for name, a in kwargs} if kwargs else {}

        def run() -> Any:
            if record.random:
                return _redraw(record, built, named, self.rng[number])
            return func(*built, **named)

        return run() if record.choices is None else run_chosen(record.choices, run)


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version; those made in inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _redraw(record: OpRecord, args: list[Any], kwargs: dict[str, Any], state: torch.Tensor) -> Any:
    """Run a random op on the generator state that the forward drew from."""
    where = record.generator
    if where is None:
        generator = generator_of(record.device)
    else:
        generator = args[where] if isinstance(where, int) else kwargs[where]
    with _drawing:
        now, new, put = _exchange(generator, state)
        try:
            put(new)
            return record.func(*args, **kwargs)
        finally:
            put(now)


_drawing = threading.RLock()  # devices replay in threads of their own, and may share a generator


def _exchange(generator: Random, state: torch.Tensor) -> tuple[Any, Any, Callable[[Any], object]]:
    """Return what a generator holds, what it shall hold for a replay, and how to put it there.

    CUDA's takes the place of another and goes back as it was: told a state, it would have cuDNN
    draw new seeds for the dropout of recurrent layers.
    """
    if isinstance(generator, torch.Generator) and generator.device.type == "cuda":
        other = generator.clone_state()
        other.set_state(state)
        return generator.graphsafe_get_state(), other, generator.graphsafe_set_state
    return generator.get_state(), state, generator.set_state
