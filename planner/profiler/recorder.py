"""Records one training step op by op: dataflow, units, lives of storages, what autograd saves.

Used by `planner.profiler.build`. A `Recording` is raw; `build` turns it into a `Profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import flop_registry

from planner.documents.profile import Category, Phase
from planner.memory.workspaces import Workspaces
from planner.profiler.backwards import ForwardOver, watching_backward
from planner.profiler.lives import Lives
from planner.profiler.timing import now_ns
from planner.profiler.unit_calls import UnitCalls
from planner.replay.aside import let_transforms_in
from planner.replay.custom_ops import NO_RULES, OpRules
from planner.replay.flow import Flow, Key
from planner.replay.launches import watch_launches
from planner.replay.record import BegunRecord, OpRecord, begin_record, finish_record
from planner.replay.run import without_graph
from planner.replay.traits import Traits, traits_of
from planner.replay.transparent_mode import TransparentMode
from planner.replay.trees import all_on_tape, tensors_in
from planner.replay.units import UnitNames
from planner.training_step.step import model_device

_in_backward = torch._C._current_graph_task_id


@dataclass(slots=True)
class RecordedOp:
    """One op; values are flow keys until `build` numbers them."""

    name: str
    unit: int
    phase: Phase
    inputs: tuple[Key, ...] = ()
    outputs: tuple[Key, ...] = ()
    time_ns: int = 0
    flops: int = 0
    replayable: bool = False
    random: bool = False
    workspace_bytes: int = 0


@dataclass(slots=True)
class RecordedPack:
    """One tensor that autograd packed; `unpacked_at` is -1 until it is asked for."""

    key: Key | None
    life: int | None
    packed_at: int
    unpacked_at: int = -1


@dataclass
class Recording:
    """What a recorded step showed."""

    ops: list[RecordedOp] = field(default_factory=list)
    packs: list[RecordedPack] = field(default_factory=list)
    lives: Lives = field(default_factory=Lives)
    life_of_slot: dict[int, int] = field(default_factory=dict)
    calls: UnitCalls | None = None
    backwards: int = 0
    held: set[int] = field(default_factory=set)  # lives that a backward not run left alive
    custom_ops: dict[str, Any] = field(default_factory=dict)  # of forward, by name
    existing: list[torch.UntypedStorage] = field(default_factory=list)  # see `Lives.existing`
    levels: list[int] = field(default_factory=list)  # see `Workspaces.levels`

    def position(self) -> int:
        """The number of ops so far."""
        return len(self.ops)


class StepRecorder(TransparentMode):
    """Sees every op of a step; forward ops with dataflow, backward ops by name and lives only.

    Args:
        model: the model whose units are named.
        give_up: drop everything that autograd saves and run no backward, to see when storages die
            by themselves (their natural death); the step is left at backward number `last`.
        last: how many backwards the step runs.
        workspaces: measures what ops take inside themselves; by default nothing does.
        rules: which ops are replayed, beyond what their schemas tell.
    """

    stands_aside = True  # its hooks let transforms in, see `planner.replay.aside`

    def __init__(
        self,
        model: nn.Module,
        give_up: bool = False,
        last: int = 1,
        workspaces: Workspaces | None = None,
        rules: OpRules = NO_RULES,
    ) -> None:
        super().__init__()
        self.last = last
        self.rules = rules
        self.workspaces = workspaces or Workspaces()
        self.recording = Recording(lives=Lives(model_device(model)))
        self.model = model
        self.names = UnitNames(model)
        self.flow = Flow(hold=False)
        self.give_up = give_up
        self.calls = UnitCalls(self.recording.position)
        self.recording.calls = self.calls
        self.backward_seen = False

    @contextmanager
    def recording_step(self, tracked: dict[Category, list[torch.Tensor]]) -> Iterator[None]:
        """Record what runs inside the block; `tracked` tensors were there before, by category."""
        watch_launches()
        let_transforms_in()
        lives = self.recording.lives
        for category, tensors in tracked.items():
            lives.see_all(tensors, category)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        try:
            with (
                watching_backward(self._backward),
                self.calls.watching(self.model),
                self.workspaces,
                self,
                hooks,
            ):
                yield
        except ForwardOver:
            pass
        finally:
            lives.open = False
            self.flow.close()
        for op, size in zip(self.recording.ops, self.workspaces.taken(), strict=False):
            op.workspace_bytes = size
        self.recording.levels = self.workspaces.levels()

    # -- ops ----------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run and record one op."""
        kwargs = kwargs or {}
        traits = traits_of(func)
        if traits.passthrough:
            return func(*args, **kwargs)
        backward = _in_backward() != -1
        self.backward_seen |= backward
        lives, ops = self.recording.lives, self.recording.ops
        op = RecordedOp(str(func), -1, "backward" if backward else self._phase())
        lives.now = len(ops)
        for tensor in tensors_in((args, kwargs)):
            lives.see(tensor, argument=True)
        if traits.custom and not backward:
            self.recording.custom_ops[traits.name] = func
        if backward or self._stays(traits) or not self._on_tape((args, kwargs)):
            out = self._timed(op, func, args, kwargs)
            record = None
        else:
            begun = begin_record(self.flow, func, traits, args, kwargs)
            out = self._timed(op, func, args, kwargs)
            record = self._finish(begun, args, out)
        for tensor in tensors_in(out):
            lives.see(tensor)
        if not backward:
            op.unit = self.calls.innermost(self.names.running())
        if record is not None:
            self._flow(op, record, args, kwargs, out)
        ops.append(op)
        return out

    def kernel_launched(self) -> None:
        """A kernel that no dispatcher sees was launched: anything may have been written."""
        self.flow.blank.update(range(len(self.flow.base)))

    def _stays(self, traits: Traits) -> bool:
        return traits.opaque or self.rules.keep_results_of(traits.name, traits.custom)

    def _on_tape(self, tree: object) -> bool:
        """Whether the flow of all tensors in here can be followed."""
        return all_on_tape(tree, {})

    def _finish(self, begun: BegunRecord, args: Any, out: object) -> OpRecord:
        return finish_record(self.flow, begun, args, out, self._on_tape)

    def _phase(self) -> Phase:
        return "other" if self.backward_seen and not self.calls.stack else "forward"

    def _timed(self, op: RecordedOp, func: Any, args: Any, kwargs: Any) -> Any:
        self.workspaces.begin()
        start = now_ns()
        out = func(*args, **kwargs)
        op.time_ns = now_ns() - start
        self.workspaces.end()
        return out

    def _flow(self, op: RecordedOp, record: Any, args: object, kwargs: object, out: object) -> None:
        op.inputs = record.reads
        op.outputs = (*record.makes, *(new for _, new in record.writes))
        op.random, op.replayable = record.random, True
        op.flops = flops_of(record.func, args, kwargs, out)
        for tensor in filter(self._on_tape, tensors_in((args, kwargs, out))):
            slot = self.flow.known.get(tensor.untyped_storage()._cdata)
            life = self.recording.lives.number(tensor)
            if slot is not None and life is not None:
                self.recording.life_of_slot.setdefault(slot, life)

    # -- what autograd packs ------------------------------------------------------------------

    def _pack(self, tensor: torch.Tensor) -> Any:
        lives = self.recording.lives
        pack = RecordedPack(None, None, self.recording.position())
        if _in_backward() == -1 and self._on_tape(tensor):
            arg = self.flow.read(tensor)
            pack.key = arg.key
            pack.life = lives.see(tensor, argument=True)
            self.recording.life_of_slot.setdefault(arg.slot, pack.life)
            self.recording.packs.append(pack)
        return None if self.give_up else (self._held(tensor), pack)

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        return without_graph(tensor)

    def _backward(self, accumulates: bool) -> bool:
        """Return whether a backward may run; if not, what is alive now is held by others."""
        recording = self.recording
        recording.backwards += 1
        if not self.give_up:
            return True
        recording.held.update(recording.lives.alive())
        if recording.backwards >= self.last or not accumulates:
            self._leave()
        return False

    def _leave(self) -> None:
        self.recording.lives.open = False  # what dies from here on dies of the error
        raise ForwardOver

    def _unpack(self, packed: Any) -> torch.Tensor:
        if self.give_up:
            self._leave()
        tensor, pack = packed
        if pack.unpacked_at < 0:
            pack.unpacked_at = self.recording.position()
        return tensor  # type: ignore[no-any-return]


def flops_of(func: Any, args: Any, kwargs: Any, out: object) -> int:
    """Return an op's floating-point operations by torch's own formulas, 0 where it has none."""
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    try:
        return int(formula(*args, **kwargs, out_val=out))
    except (TypeError, ValueError, AttributeError, AssertionError):
        return 0


def run_recorded(
    model: nn.Module,
    run: Callable[[], object],
    tracked: dict[Category, list[torch.Tensor]],
    give_up: bool = False,
    recorder: StepRecorder | None = None,
    last: int = 1,
) -> Recording:
    """Run a step once and return its recording; see `StepRecorder`."""
    recorder = recorder or StepRecorder(model, give_up, last)
    with recorder.recording_step(tracked):
        run()
        for parameter in model.parameters():
            if parameter.grad is not None:
                recorder.recording.lives.relabel(parameter.grad, "gradient")
    recorder.recording.existing = recorder.recording.lives.existing()
    return recorder.recording
