"""A callback for Lightning's `Trainer`.

>>> from planner.integrations.lightning import PlannerCallback   # doctest: +SKIP
>>> trainer = Trainer(callbacks=[PlannerCallback(budget_mb=300)])   # doctest: +SKIP
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from typing_extensions import override

from planner import Plan
from planner.errors import InvalidModelError
from planner.integrations.training import PlannedTraining


class PlannerCallback(Callback):
    """Trains a Lightning module, or one of its children, under a plan.

    The plan goes on when fitting begins and comes off when it ends. It is stored in checkpoints
    and taken up when fitting is resumed from one. Its budget, peak and overhead go to the trainer's
    loggers.

    Args:
        plan: a plan or the path of one.
        budget_mb: in its place, the most memory of one step; the plan is made in the first steps.
        module: name of the child that the plan is for, such as "net"; by default the Lightning
            module itself where it has a forward of its own, else its only child with parameters.

    Raises:
        InvalidInputsError: neither was given, or both.
    """

    def __init__(
        self,
        plan: Plan | str | PathLike[str] | None = None,
        *,
        budget_mb: float | str | None = None,
        module: str | None = None,
    ) -> None:
        self._training = PlannedTraining(plan, budget_mb)
        self._module = module
        self._logged: dict[str, float] = {}

    @property
    def plan(self) -> Plan | None:
        """The plan at work, or None before there is one."""
        return self._training.plan

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the plan on the module that is called."""
        self._logged = {}
        self._training.start(self._called(pl_module))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *args: object, **kwargs: object
    ) -> None:
        """Log the plan's figures, whenever they are new."""
        figures = self._training.figures()
        if figures != self._logged:
            self._logged = figures
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the plan off."""
        self._training.stop()

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Take the plan off when training ends in an error."""
        self._training.stop()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the plan at work as JSON text, for the checkpoint."""
        return {"plan": self.plan.to_json()} if self.plan is not None else {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the plan of the checkpoint that training is resumed from."""
        if "plan" in state_dict:
            self._training.resume(Plan.from_json(state_dict["plan"]))

    def _called(self, module: LightningModule) -> nn.Module:
        """Return the module whose call is the forward of a training step."""
        if self._module is not None:
            return module.get_submodule(self._module)
        if type(module).forward is not LightningModule.forward:
            return module
        trained = [
            child for child in module.children() if any(p.requires_grad for p in child.parameters())
        ]
        if len(trained) == 1:
            return trained[0]
        raise InvalidModelError(
            f"{type(module).__name__} has no forward of its own: any child could be meant",
            f"{len(trained)} children with parameters that require gradients",
            "training_step calls children of the module instead of the module",
            "name the child: PlannerCallback(..., module='net')",
        )
