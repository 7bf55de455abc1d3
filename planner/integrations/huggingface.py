"""A callback for `transformers.Trainer` (and for TRL's trainers, which are built on it).

>>> from planner.integrations.huggingface import PlannerCallback   # doctest: +SKIP
>>> trainer = Trainer(model, args, callbacks=[PlannerCallback(budget_mb=300)])   # doctest: +SKIP
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import override

from planner import Plan
from planner.integrations.training import (
    PlannedTraining,
    switch_off_checkpointing,
    warn_of_compiling,
)


class PlannerCallback(TrainerCallback):
    """Trains the trainer's model under a plan.

    The plan goes on when training begins and comes off when it ends. It is saved beside every
    checkpoint and taken up when training is resumed from one. Its budget, peak and overhead are
    added to the trainer's logs.

    Args:
        plan: a plan or the path of one.
        budget_mb: in its place, the most memory of one step; the plan is made in the first steps.

    Raises:
        InvalidInputsError: neither was given, or both.
    """

    def __init__(
        self,
        plan: Plan | str | PathLike[str] | None = None,
        *,
        budget_mb: float | str | None = None,
    ) -> None:
        self._training = PlannedTraining(plan, budget_mb)
        self._logged: dict[str, float] = {}

    @property
    def plan(self) -> Plan | None:
        """The plan at work, or None before there is one."""
        return self._training.plan

    @override
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the plan on the model."""
        model: nn.Module = kwargs["model"]
        switch_off_checkpointing(model)
        if args.torch_compile:
            warn_of_compiling("torch_compile=True")
        stored = _plan_file(args, state)
        if state.global_step > 0 and stored.exists():  # resumed
            self._training.resume(Plan.load(stored))
        self._training.start(model)
        self._logged = {}

    @override
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the plan beside the checkpoint."""
        file = _plan_file(args, state)
        if state.is_world_process_zero and self.plan is not None and file.parent.is_dir():
            self.plan.save(file, force=True)

    @override
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the plan's figures to what is logged, whenever they are new."""
        figures = self._training.figures()
        if logs is None or figures == self._logged:
            return
        self._logged = figures
        logs.update(figures)
        if state.log_history:
            state.log_history[-1].update(figures)

    @override
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the plan off."""
        self._training.stop()


def _plan_file(args: TrainingArguments, state: TrainerState) -> Path:
    folder = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
    return folder / "planner.plan.json"
