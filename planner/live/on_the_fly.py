"""Planning while the model trains: record a step, plan before the next one, run under the plan.

Driven by hooks on the model alone. A step for which no plan is known runs with every block
recomputed and is recorded; when the next one begins, the plan is made from the record. Plans of
different sizes of inputs are kept side by side, and the smallest change of situation that a plan
did not count with (larger inputs, gradients that persist, another optimizer) asks for a new one.
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from planner.applier.gates import RootEnterGate, install
from planner.applier.runtime import Runtime
from planner.documents import Plan
from planner.errors import PlannerError
from planner.live.blocks import recompute_all
from planner.live.gates import LiveEnterGate, LiveExitGate
from planner.live.making import plan_from, profile_of
from planner.live.recording import Record, Recording
from planner.live.situation import Situation, situation_of
from planner.live.step import RecordedStep
from planner.profiler.call import Call
from planner.profiler.storages import tensors_in
from planner.units import Budget

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
        self._model = weakref.ref(model)
        self._parameters = list(model.parameters())
        self._recompute = Runtime(recompute_all(model))
        self.runtime = self._recompute
        self._runtime_hooks: list[Any] = install(model, self.runtime)
        self._known: list[_Known] = []
        self._records: list[Record] = []
        self._recording: Recording | None = None
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._said: set[str] = set()
        self._busy = False
        enter = model.register_forward_pre_hook(LiveEnterGate(self), prepend=True, with_kwargs=True)
        leave = model.register_forward_hook(LiveExitGate(self), always_call=True)
        self._hooks: list[Any] = [enter, leave, _watch_optimizers(self)]

    @property
    def replayed_ops(self) -> int:
        """Ops replayed so far, by all runtimes."""
        runtimes = {id(r): r for r in (self._recompute, *(k.runtime for k in self._known))}
        return sum(runtime.replayed[0] for runtime in runtimes.values())

    def remove(self) -> None:
        """Take everything off the model again."""
        self._drop_recording()
        for hook in (*self._hooks, *self._runtime_hooks):
            hook.remove()
        self._hooks, self._runtime_hooks = [], []

    # -- events -------------------------------------------------------------------------------

    def entered(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called. Evaluation, and what runs within backward, is left alone."""
        if self._busy or not _trains(model):
            return
        recording = self._recording
        if recording is not None and recording.goes_on and not recording.is_whole:
            recording.entered(args, kwargs)
            return
        if recording is not None:
            self._end_recording(recording)
        now = situation_of(Call(args, kwargs).specs(), self._parameters, self._optimizers)
        runtime = self._runtime_for(model, now)
        if runtime is not None:
            self._use(runtime, model, args)
            return
        self._use(self._recompute, model, args)
        self._parameters = list(model.parameters())
        self._recording = Recording(model)
        self._recording.entered(args, kwargs)

    def left(self, output: Any) -> None:
        """The model's call is over."""
        if self._recording is not None and not self._busy:
            self._recording.left(output)

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """Some optimizer has made its update."""
        if self._busy or id(optimizer) in self._optimizers:
            known = self._optimizers.get(id(optimizer))
            if known is not None and self._recording is not None:
                self._recording.step_over()
            return
        mine = {id(parameter) for parameter in self._parameters}
        groups = optimizer.param_groups
        if any(id(parameter) in mine for group in groups for parameter in group["params"]):
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            if self._recording is not None:
                self._recording.step_over()

    # -- plans --------------------------------------------------------------------------------

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
            self._say(_larger(now))
        return None

    def _counting(self, record: Record, now: Situation) -> Situation:
        """A record's situation with what is there now, and with gradients if ever any persisted."""
        seen = (known.situation.gradient_bytes for known in self._known)
        most = max(now.gradient_bytes, *seen, 0)
        return replace(now, calls=tuple(record.script.calls), gradient_bytes=most)

    def _planned(self, model: nn.Module, record: Record, wanted: Situation) -> Runtime:
        """A runtime under the plan for a record; where none can be made, with all recomputed."""
        self._use(None, model, ())
        self._busy = True
        try:
            if record.script.problem:
                raise PlannerError(
                    "the recorded step cannot be planned from",
                    cause=record.script.problem,
                    fix="plan from inputs: planner.plan(model, budget_mb=..., inputs=...)",
                )
            step = self._step(model, record, wanted)
            self.plan = plan_from(profile_of(step, record.timer), self._budget, step)
        except Exception as error:
            self._say(_unplanned(model, error))
            return self._recompute
        finally:
            self._busy = False
        return Runtime(self.plan)

    def _step(self, model: nn.Module, record: Record, wanted: Situation) -> RecordedStep:
        """The recorded step, its update by the largest optimizer; the state of others counts."""
        alive = [found for ref in self._optimizers.values() if (found := ref()) is not None]
        by_size = sorted(alive, key=_state_bytes)
        others = [list(tensors_in(other.state.values())) for other in by_size[:-1]]
        outside = {str(number): tensor for number, tensor in record.script.outside.items()}
        return RecordedStep(
            model,
            record.script,
            by_size[-1] if by_size else None,
            accumulates=wanted.gradient_bytes > 0,
            outside={**outside, "-1": others},
        )

    # -- at work ------------------------------------------------------------------------------

    def _use(self, runtime: Runtime | None, model: nn.Module, args: Any) -> None:
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

    def _end_recording(self, recording: Recording) -> None:
        self._recording = None
        record = recording.end()
        if record.script.calls and recording.is_whole:
            self._records = [*self._records, record][-MOST_KEPT:]

    def _drop_recording(self) -> None:
        if self._recording is not None:
            self._recording.end()
            self._recording = None

    def _say(self, error: PlannerError) -> None:
        """Warn, once for each kind of news."""
        if error.what not in self._said:
            self._said.add(error.what)
            warnings.warn(str(error), RuntimeWarning, stacklevel=5)


def _trains(model: nn.Module) -> bool:
    return (
        model.training
        and torch.is_grad_enabled()
        and not torch.is_inference_mode_enabled()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._current_graph_task_id() == -1
    )


def _watch_optimizers(planning: OnTheFly) -> Any:
    """Hear of every update in the process, for as long as this is about."""
    there = weakref.ref(planning)

    def updated(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        found = there()
        if found is not None:
            found.updated(optimizer)

    return register_optimizer_step_post_hook(updated)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(optimizer.state.values()))


def _larger(now: Situation) -> PlannerError:
    shapes = ", ".join(f"{spec.path} {list(spec.shape)}" for spec in now.calls[0])
    return PlannerError(
        "this step's inputs are larger than those planned for: it runs with every block"
        " recomputed, and the plan is made again before the next one",
        numbers=shapes,
        cause="batches or sequences of several lengths",
        fix="nothing; to plan once, let the first step be the largest",
    )


def _unplanned(model: nn.Module, error: Exception) -> PlannerError:
    known = error if isinstance(error, PlannerError) else PlannerError("", cause=repr(error))
    return PlannerError(
        f"no plan could be made for this {type(model).__name__} while it trains; it goes on with"
        f" every block recomputed: {known.what or type(error).__name__}",
        numbers=known.numbers,
        cause=known.cause,
        fix=known.fix or "plan from inputs: planner.plan(model, budget_mb=..., inputs=...)",
    )
