"""Every step that is looked at begins from the same state: what it does must not change between
looks, down to the branch that a random number chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from planner.training_step.state import preserve
from planner.training_step.step import Step


@contextmanager
def from_same_state(step: Step) -> Iterator[None]:
    """Run a step without gradients to begin with, and put everything back afterwards.

    An optimizer without state yet gets it from a step before: every later step has it.
    """
    with preserve(step.model, step.optimizer, step):
        begin(step)
        yield


def begin(step: Step) -> None:
    """Bring a step to where it begins: optimizer state there, gradients not."""
    clear_gradients(step)
    if step.optimizer is not None and not step.optimizer.state:
        step.run()
        clear_gradients(step)


def clear_gradients(step: Step) -> None:
    """Begin without gradients, of parameters and of inputs; with those that the step adds to."""
    for tensor in (*step.model.parameters(), *step.input_tensors):
        tensor.grad = None
    for parameter in step.model.parameters() if step.accumulates else ():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
