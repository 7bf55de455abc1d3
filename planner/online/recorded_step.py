"""A recorded step as a `Step`, so that the profiler can run it on fakes like any other."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.documents.step import StepInfo
from planner.errors import StepError
from planner.online.script import Script, play
from planner.training_step.call import Call
from planner.training_step.situation import mode_of
from planner.training_step.step import Step
from planner.training_step.tree import host_copies, tensors_with_paths


class RecordedStep(Step):
    """One step of somebody's training loop.

    What the profiler takes for its inputs is all that came from outside: arguments of the model,
    targets, and whatever else is alive beside the model.

    Args:
        model: the model that it trains.
        script: the step.
        optimizer: does the update at the end, where there is one.
        accumulates: it begins with gradients.
        outside: in place of the script's own stand-ins.
    """

    def __init__(
        self,
        model: nn.Module,
        script: Script,
        optimizer: torch.optim.Optimizer | None = None,
        accumulates: bool = False,
        outside: dict[str, object] | None = None,
    ) -> None:
        super().__init__(model, None, None, None, optimizer)
        self.accumulates = accumulates
        self._script = script
        self._outside = outside or {str(n): t for n, t in script.outside.items()}

    @property
    def is_users_own(self) -> bool:
        """False: its inputs are known."""
        return False

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Everything that came from outside."""
        return dict(tensors_with_paths(self._outside))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The same, in the form of arguments."""
        return (), self._outside

    def with_call(self, call: Call) -> Step:
        """Return the same step on other tensors from outside."""
        return RecordedStep(
            self.model, self._script, self.optimizer, self.accumulates, dict(call.kwargs)
        )

    def run(self, *, copy_outputs: bool = False) -> tuple[torch.Tensor, ...]:
        """Run it once; see `Step.run`.

        Raises:
            StepError: something in it raised.
        """
        try:
            with torch.inference_mode(False), torch.enable_grad():
                outside = {int(n): tensor for n, tensor in self._outside.items()}
                returned = play(self._script, self.model, outside)
                if self.optimizer is not None:
                    self.optimizer.step()
        except Exception as error:
            raise StepError(
                f"the recorded step of {type(self.model).__name__} raised {type(error).__name__}",
                cause=f"{type(error).__name__}: {error}",
                fix="plan from inputs: planner.plan(model, budget_mb=..., inputs=...)",
            ) from error
        return host_copies(returned) if copy_outputs else ()

    def describe(self) -> StepInfo:
        """Describe it for a plan, as the step made from the same inputs is described."""
        script = self._script
        return StepInfo(
            inputs=script.calls[0],
            device=script.device,
            autocast=script.autocast,
            optimizer=type(self.optimizer).__name__ if self.optimizer is not None else "",
            root_calls=len(script.calls),
            mode=mode_of(self.model),
        )
