"""What `planner.apply(model, budget_mb=...)` returns."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from typing_extensions import override

from planner.applier.apply import Removable
from planner.applier.check import check_plan
from planner.applier.compiling import warn_of_wrapper
from planner.applier.status import Status
from planner.budget import Budget
from planner.documents import Exclusion, Plan
from planner.errors import InvalidModelError
from planner.online.on_the_fly import OnTheFly
from planner.online.recompute_all import recompute_all
from planner.training_step.checks import check_model
from planner.training_step.compiled import compiled_units

_WRAPPERS = (DataParallel, DistributedDataParallel)


class OnTheFlyHandle(Removable):
    """A model that trains under a budget; its plan is made on the way.

    Args:
        model: the model.
        budget: the most live bytes of a step.

    Raises:
        InvalidModelError: a plan is on this model already, or it cannot be planned.
    """

    def __init__(self, model: nn.Module, budget: Budget) -> None:
        check_model(model)
        _check_unwrapped(model)
        _check_uncompiled(model)
        check_plan(model, recompute_all(model))
        warn_of_wrapper(model)
        self._planning = OnTheFly(model, budget)

    @property
    def plan(self) -> Plan | None:
        """The plan made last; None until the first is made, when the second step begins."""
        return self._planning.plan

    @property
    def left_out(self) -> tuple[Exclusion, ...]:
        """Units that cannot be hooked and run as without a plan."""
        return self._planning.runtime.left_out

    @property
    @override
    def status(self) -> Status:
        return self._planning.status

    @property
    @override
    def replayed_ops(self) -> int:
        """Ops replayed so far, over all steps."""
        return self._planning.replayed_ops

    @override
    def remove(self) -> None:
        """Take everything off; a forward that still waits for its backward stays valid."""
        self._planning.remove()


def _check_unwrapped(model: nn.Module) -> None:
    if isinstance(model, _WRAPPERS):
        raise InvalidModelError(
            f"a {type(model).__name__} cannot be planned for while it trains",
            cause="the wrapper works on its own at each call of the model",
            fix="apply to the model inside: planner.apply(wrapped.module, budget_mb=...)",
        )


def _check_uncompiled(model: nn.Module) -> None:
    units = compiled_units(model)
    if units:
        raise InvalidModelError(
            f"a {type(model).__name__} with compiled units cannot be planned for while it trains:"
            f" {', '.join(units[:4])}",
            f"{len(units)} compiled units",
            "the first step could not recompute what they save, since they run no hooks",
            "plan from inputs: planner.plan(model, budget_mb=..., inputs=...)",
        )
