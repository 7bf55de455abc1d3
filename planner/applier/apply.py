"""Installs a plan on a model, reversibly: `apply`, and plans written by hand.

The only room that knows both plans and the replay engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal

from torch import nn
from typing_extensions import Self, override

from planner.applier.check import check_plan
from planner.applier.compiling import warn_of_wrapper
from planner.applier.first_steps import FirstSteps
from planner.applier.gates import install
from planner.applier.manual import manual_plan
from planner.applier.runtime import Runtime
from planner.applier.status import Status
from planner.documents import Exclusion, Plan
from planner.replay.native.build import engine

__all__ = ["Handle", "Removable", "apply", "manual_plan"]


class Removable:
    """Something put on a model; `remove()` or leaving its `with` block takes it off again."""

    def remove(self) -> None:
        """Take it off."""
        raise NotImplementedError

    @property
    def status(self) -> Status:
        """What becomes of the model's steps just now."""
        raise NotImplementedError

    @property
    def replayed_ops(self) -> int:
        """Ops replayed so far, over all steps."""
        raise NotImplementedError

    def __repr__(self) -> str:
        replayed, name = f"{self.replayed_ops:,} ops replayed", engine().name
        return f"<planner: {self.status}; {replayed}; engine: {name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class Handle(Removable):
    """An applied plan.

    Attributes:
        plan: the plan at work.
    """

    def __init__(
        self, plan: Plan, runtime: Runtime, hooks: Sequence[Any], first_steps: FirstSteps
    ) -> None:
        self.plan = plan
        self._runtime = runtime
        self._hooks = hooks  # grows when a sharded unit is met later
        self._first_steps = first_steps
        self._removed = False

    @property
    def left_out(self) -> tuple[Exclusion, ...]:
        """Units of the plan's segments that cannot be hooked and run as without a plan."""
        return self._runtime.left_out

    @property
    def engine(self) -> Literal["native", "python"]:
        """What follows and replays the model's segments: the C++ core, or Python."""
        return engine().name

    @property
    @override
    def status(self) -> Status:
        if self._removed:
            return Status("removed")
        return status_of(self.plan, self.left_out)

    @property
    @override
    def replayed_ops(self) -> int:
        """Ops replayed so far, over all steps."""
        return self._runtime.replayed.ops

    @override
    def remove(self) -> None:
        """Take the plan off; a forward that still waits for its backward stays valid."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = ()
        self._removed = True
        self._first_steps.remove()


def status_of(plan: Plan, left_out: Sequence[Exclusion]) -> Status:
    """Return the status of a model under a plan."""
    if not plan.segments:
        return Status("planned", "nothing is recomputed")
    count = len(plan.segments)
    parts = [f"{count} segment{'s' * (count != 1)}"]
    parts += [f"{unit.unit} is left alone, since it {unit.reason}" for unit in left_out]
    return Status("planned", "; ".join(parts))


def apply(model: nn.Module, plan: Plan | str | PathLike[str], strict: bool = False) -> Handle:
    """Install a plan on a model, in place and reversibly.

    The model stays the same object, with the same class, module names, `state_dict` keys,
    parameters and attributes; only forward hooks are added.

    Args:
        model: the model that the plan was made for.
        plan: a `Plan`, or the path of a plan file.
        strict: raise where a step is not the one that the plan was made for, instead of warning.

    Returns:
        A handle that removes the plan again, by `remove()` or as a context manager.

    Raises:
        StalePlanError: the model is not the one that the plan was made for.
        InvalidModelError: a plan is on this model already, it is compiled as a whole, or it is no
            module.
        DocumentError: the plan file cannot be read.
    """
    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    check_plan(model, plan)
    warn_of_wrapper(model)
    runtime = Runtime(plan)
    hooks = install(model, runtime) if plan.segments else ()
    return Handle(plan, runtime, hooks, FirstSteps(model, plan, strict))
