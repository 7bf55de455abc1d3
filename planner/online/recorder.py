"""Records one training step of somebody's loop: what it calls, and its ops' times and sizes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from planner.online.op_sizes import SizingTimer
from planner.online.script import Script
from planner.online.script_writer import ScriptWriter
from planner.replay.stack import remove_mode
from planner.training_step.step import model_device


@dataclass(frozen=True, slots=True)
class RecordedLoop:
    """One step of the loop that ran: what it called, and the times and sizes of its ops."""

    script: Script
    timer: SizingTimer


class LoopRecorder:
    """A step that is being recorded, from the model's first call to the next step.

    Whatever ends a call of the model, also an error or an interrupt, stops the clock, and a call
    that did not return ends the recording.
    """

    def __init__(self, model: nn.Module) -> None:
        self._writer = ScriptWriter(model)
        self._timer = SizingTimer(model_device(model))
        self._running = False
        self._failed = False

    @property
    def is_whole(self) -> bool:
        """Whether a backward was seen, or never will be."""
        return self._writer.script.is_whole or bool(self._writer.script.problem)

    @property
    def goes_on(self) -> bool:
        """Whether a call of the model that begins now may be another one of this step."""
        interrupted = self._running or self._failed
        return not interrupted and not self.is_whole and self._writer.is_waited_for

    def entered(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The model is called."""
        self._writer.model_called(args, kwargs)
        self._running = True
        self._timer.__enter__()

    def left(self, output: object) -> None:
        """The model's call returned or, without an output, raised."""
        if not self._running:
            return
        self._running = False
        remove_mode(self._timer)
        if output is None:
            self._failed = True
        else:
            self._writer.model_returned(output)

    def step_over(self) -> None:
        """The optimizer has made its update."""
        if self.is_whole:
            self._writer.stop_writing()

    def end(self) -> RecordedLoop:
        """Take everything off torch's stacks and return what was recorded."""
        remove_mode(self._timer)
        return RecordedLoop(self._writer.finish(), self._timer)
