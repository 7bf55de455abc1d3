"""Compares the first training steps under a plan with what the plan was made for, and says so.

Each point is compared until it differs, and reported once: as a warning, or as an error where the
plan was applied strictly. Used by `planner.applier.apply.Handle`.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from planner.documents import Plan
from planner.errors import StalePlanError
from planner.training_step.call import Call
from planner.training_step.optimizers import Updates, state_bytes
from planner.training_step.situation import (
    Difference,
    gradient_bytes,
    other_autocast,
    other_gradients,
    other_inputs,
    other_mode,
    other_optimizer,
    other_wrapper,
)
from planner.training_step.step import autocast_dtype, model_device

UPDATES_WITHOUT_A_CALL = 3
"""After so many updates of a model whose forward was never called, that is said."""


class FirstSteps:
    """Watches the training steps of a model that runs under a plan.

    Args:
        model: the model.
        plan: the plan at work.
        strict: raise instead of warning.

    Attributes:
        calls: training calls of the model's forward so far.
    """

    def __init__(self, model: nn.Module, plan: Plan, strict: bool) -> None:
        self.calls = 0
        self._model = weakref.ref(model)
        self._plan = plan
        self._strict = strict
        self._said: set[str] = set()
        self._updates_seen = 0
        self._updates = Updates(model, self._updated)
        self._hook: RemovableHandle | None = None
        if not isinstance(model, torch.jit.ScriptModule):  # which take no such hooks
            self._hook = model.register_forward_pre_hook(CallGate(self), with_kwargs=True)

    def remove(self) -> None:
        """Watch no longer."""
        if self._hook is not None:
            self._hook.remove()
        self._updates.remove()

    def called(self, model: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The model's forward begins."""
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return
        self.calls += 1
        planned = self._plan.step
        self._say(other_mode(planned, model))
        if self.calls == 1 or planned.root_calls == 1:
            self._say(other_inputs(planned, Call(args, kwargs).specs()))
            self._say(other_gradients(planned, gradient_bytes(model)))
        self._say(other_autocast(planned, autocast_dtype(model_device(model).type)))
        self._say(other_wrapper(model))

    def _updated(self) -> None:
        self._updates_seen += 1
        for optimizer in self._updates.by_size():
            name = type(optimizer).__name__
            self._say(other_optimizer(self._plan.step, name, state_bytes(optimizer)))
        model = self._model() if self._hook is not None and not self.calls else None
        if model is not None and self._updates_seen == UPDATES_WITHOUT_A_CALL:
            self._say(
                Difference(
                    f"calls of {type(model).__name__}",
                    f"{self._plan.step.root_calls} in each step",
                    f"none in {self._updates_seen} updates",
                    "another module's forward is called, or a compiled one, and the plan does"
                    " nothing",
                )
            )

    def _say(self, difference: Difference | None) -> None:
        if difference is None or difference.what in self._said:
            return
        self._said.add(difference.what)
        error = StalePlanError(
            f"the training step is not the one that the plan was made for: {difference.what}",
            f"{difference.planned} in the plan, {difference.found} in the step",
            difference.effect,
            "make the plan for this step: planner.plan(model, budget_mb=..., inputs=...,"
            " optimizer=...)",
        )
        if self._strict:
            raise error
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


class CallGate:
    """Forward pre-hook of the model; a copy of the model takes it along without its watcher."""

    def __init__(self, watcher: FirstSteps | None = None) -> None:
        self.watcher = watcher

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, object]) -> None:
        """Note the call."""
        if self.watcher is not None and not torch.compiler.is_compiling():
            self.watcher.called(module, args, kwargs)

    def __deepcopy__(self, memo: dict[int, object]) -> CallGate:
        return CallGate()

    def __reduce__(self) -> tuple[Any, ...]:
        return CallGate, ()
