"""Planning while the model trains: record a step, plan before the next one, run under the plan.

Driven by hooks on the model alone. A step for which no plan is known runs with every block
recomputed and is recorded; when the next one begins, the plan is made from the record. Plans of
different sizes of inputs are kept side by side, and the smallest change of situation that a plan
did not count with (larger inputs, gradients that persist, another optimizer) asks for a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from planner.applier.apply import status_of
from planner.applier.first_steps import UPDATES_WITHOUT_A_CALL
from planner.applier.gates import RootEnterGate, install
from planner.applier.marks import mark_running_call, marks_on_stack
from planner.applier.runtime import Runtime
from planner.applier.status import Status
from planner.budget import Budget
from planner.documents import Plan
from planner.online.call_hooks import CallEnterGate, CallExitGate
from planner.online.notices import Notices, not_recordable
from planner.online.plan_recorded import plan_from, profile_of
from planner.online.recompute_all import LEAST_DRAWN_BYTES, recompute_all
from planner.online.recorded_step import RecordedStep
from planner.online.recorder import LoopRecorder, RecordedLoop
from planner.online.situation import Situation, situation_of
from planner.training_step.call import Call
from planner.training_step.optimizers import Updates, state_tensors

MOST_KEPT = 16
"""Plans and records kept for different sizes of inputs; the oldest give way."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The runtime for steps in a situation and in all that it covers."""

    situation: Situation
    runtime: Runtime


class OnTheFly:
    """One model that trains under a budget.

    Attributes:
        plan: the plan made last, None before the first.
        runtime: what is at work now.
    """

    def __init__(self, model: nn.Module, budget: Budget) -> None:
        self.plan: Plan | None = None
        self._budget = budget
        self._parameters = list(model.parameters())
        self._recompute = Runtime(recompute_all(model), LEAST_DRAWN_BYTES)
        self._recompute.check_first()
        self.runtime = self._recompute
        self._runtime_hooks: list[Any] = install(model, self.runtime)
        self._known: list[_Known] = []
        self._records: list[RecordedLoop] = []
        self._recorder: LoopRecorder | None = None
        self._updates = Updates(model, self.updated)
        self._notices = Notices()
        self._busy = self._removed = False
        self._problem = ""  # why no plan was made, where it was tried last
        self._called, self._updates_seen, self._model_class = False, 0, type(model).__name__
        self._call: int | None = None  # mark of the training call that is under way
        self._depth = 0
        enter = model.register_forward_pre_hook(CallEnterGate(self), prepend=True, with_kwargs=True)
        leave = model.register_forward_hook(CallExitGate(self), always_call=True)
        self._hooks: list[Any] = [enter, leave, self._updates]

    @property
    def replayed_ops(self) -> int:
        """Ops replayed so far, by all runtimes."""
        runtimes = {id(r): r for r in (self._recompute, *(k.runtime for k in self._known))}
        return sum(runtime.replayed.ops for runtime in runtimes.values())

    @property
    def status(self) -> Status:
        """What becomes of the model's steps just now."""
        if self._removed:
            return Status("removed")
        if self.runtime is not self._recompute:
            return status_of(self.runtime.plan, self.runtime.left_out)
        if not self._called:
            return Status("waiting", "no training step of the model was seen yet")
        if self._recorder is not None:
            return Status("recording", "every block is recomputed in this step")
        return Status("recomputing", self._problem)

    def remove(self) -> None:
        """Take everything off the model again."""
        self._removed = True
        self._drop_recording()
        for hook in (*self._hooks, *self._runtime_hooks):
            hook.remove()
        self._hooks, self._runtime_hooks = [], []

    # -- events -------------------------------------------------------------------------------

    def entered(
        self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """The model is called. Evaluation, and what runs within backward, is left alone."""
        if self._busy:
            return
        if self._call is not None and self._call in marks_on_stack():  # by itself
            self._depth += 1
            return
        self._call = None
        if _trains(model):
            self._call, self._depth = mark_running_call(self._gone), 1
            self._step_begins(model, args, kwargs)

    def left(self, output: object) -> None:
        """The model's call returned or, without an output, raised."""
        if self._busy or self._call is None:
            return
        self._depth -= 1
        if self._depth == 0:
            self._call = None
            if self._recorder is not None:
                self._recorder.left(output)

    def _gone(self, mark: int) -> None:
        """The frame of a call is gone; if the call was not left, it was interrupted."""
        if mark == self._call:
            self._call = None
            if self._recorder is not None:
                self._recorder.left(None)

    def updated(self) -> None:
        """An optimizer of the model has made its update."""
        self._updates_seen += 1
        if not self._called and self._updates_seen == UPDATES_WITHOUT_A_CALL:
            self._notices.never_called(self._model_class, self._updates_seen)
        if self._recorder is not None and not self._busy:
            self._recorder.step_over()

    # -- plans --------------------------------------------------------------------------------

    def _step_begins(
        self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Run the step, or what is left of it, under the plan for it, or record it."""
        self._called = True
        recording = self._recorder
        if recording is not None and recording.goes_on:
            recording.entered(args, kwargs)
            return
        if recording is not None:
            self._end_recording(recording)
        now = situation_of(Call(args, kwargs).specs(), self._parameters, self._updates.ids())
        runtime = self._runtime_for(model, now)
        if runtime is not None:
            self._use(runtime, model, args)
            return
        self._use(self._recompute, model, args)
        self._parameters = list(model.parameters())
        self._recorder = LoopRecorder(model)
        self._recorder.entered(args, kwargs)

    def _runtime_for(self, model: nn.Module, now: Situation) -> Runtime | None:
        """The runtime that serves in this situation, made from a record if need be."""
        for known in reversed(self._known):
            if known.situation.covers(now):
                return known.runtime
        for record in reversed(self._records):
            wanted = self._counting(record, now)
            if wanted.covers(now):
                runtime = self._planned(model, record, wanted)
                self._known = [*self._known, _Known(wanted, runtime)][-MOST_KEPT:]
                return runtime
        if self._known and not any(k.situation.covers_shapes(now) for k in self._known):
            self._notices.larger(now)
        return None

    def _counting(self, record: RecordedLoop, now: Situation) -> Situation:
        """A record's situation with what is there now, and with gradients if ever any persisted."""
        seen = (known.situation.gradient_bytes for known in self._known)
        most = max(now.gradient_bytes, *seen, 0)
        return replace(now, calls=tuple(record.script.calls), gradient_bytes=most)

    def _planned(self, model: nn.Module, record: RecordedLoop, wanted: Situation) -> Runtime:
        """A runtime under the plan for a record; where none can be made, with all recomputed."""
        self._use(None, model, ())
        self._busy = True
        try:
            if record.script.problem:
                raise not_recordable(record.script.problem)
            step = self._step(model, record, wanted)
            self.plan = plan_from(profile_of(step, record.timer), self._budget, step)
        except Exception as error:
            self._notices.unplanned(model, error)
            self._problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            return self._recompute
        finally:
            self._busy = False
        runtime = Runtime(self.plan)
        runtime.check_first()
        return runtime

    def _step(self, model: nn.Module, record: RecordedLoop, wanted: Situation) -> RecordedStep:
        """The recorded step, its update by the largest optimizer; the state of others counts."""
        by_size = self._updates.by_size()
        others = [state_tensors(other) for other in by_size[:-1]]
        outside = {str(number): tensor for number, tensor in record.script.outside.items()}
        return RecordedStep(
            model,
            record.script,
            by_size[-1] if by_size else None,
            accumulates=wanted.gradient_bytes > 0,
            outside={**outside, "-1": others},
        )

    # -- at work ------------------------------------------------------------------------------

    def _use(self, runtime: Runtime | None, model: nn.Module, args: object) -> None:
        """Put another runtime (or none) on the model, whose call has just begun."""
        if runtime is self.runtime and self._runtime_hooks:
            return
        self.runtime.enabled = False
        self.runtime.forward_ends()
        for hook in self._runtime_hooks:
            hook.remove()
        self._runtime_hooks = []
        if runtime is None:
            return
        self.runtime, runtime.enabled = runtime, True
        if runtime.plan.segments:
            self._runtime_hooks = install(model, runtime)
            RootEnterGate(runtime, "")(model, args)

    def _end_recording(self, recording: LoopRecorder) -> None:
        self._recorder = None
        record = recording.end()
        if record.script.calls and recording.is_whole:
            self._records = [*self._records, record][-MOST_KEPT:]

    def _drop_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.end()
            self._recorder = None


def _trains(model: nn.Module) -> bool:
    return (
        model.training
        and torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._current_graph_task_id() == -1
    )
