"""`make_step`: from what a user gives to one training step that can be run again and again.

Used by the recorder, the verifier and the measured search. A step is either built from `inputs`,
`loss_fn` and `optimizer`, or is the user's own `step(model)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from planner.documents.step import StepInfo
from planner.errors import PlannerError, StepError
from planner.training_step import checks
from planner.training_step.call import Call, CallSource, call_source
from planner.training_step.loss import check_loss, default_loss
from planner.training_step.observed_run import (
    BackwardTraces,
    RootCalls,
    autocast_dtype,
    model_device,
)
from planner.training_step.situation import mode_of
from planner.training_step.tree import host_copies

__all__ = ["Step", "autocast_dtype", "make_step", "model_device"]

Optimizer = torch.optim.Optimizer


class Step:
    """One training step of a model: forward, loss, backward and, with an optimizer, its update.

    Made by `make_step`. Gradients stay in `.grad`, and are not cleared first: wrap runs in
    `planner.training_step.state.preserve` to begin each from the same state.

    Attributes:
        model: the model.
        optimizer: the optimizer, or None.
        accumulates: whether it adds to gradients of earlier ones; most begin without any.
        existing: storages that were there before the step, beside those of the model, the optimizer
            and the inputs: data and constants that its code holds. None until a recorded run (see
            `planner.profiler.recorder`) has shown them.
    """

    accumulates = False

    def __init__(
        self,
        model: nn.Module,
        source: CallSource | None,
        loss_fn: Callable[[Any], Any] | None,
        step: Callable[[nn.Module], object] | None,
        optimizer: Optimizer | None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._source = source
        self._loss_fn = loss_fn or default_loss
        self._user_step = step
        self._seen = RootCalls()
        self._has_backward = step is None
        self.existing: tuple[torch.UntypedStorage, ...] | None = None

    def with_call(self, call: Call) -> Step:
        """Return the same step on other arguments; a user's own step stays as it is."""
        source = None if self._source is None else CallSource(lambda: call, fresh=False)
        return Step(self.model, source, self._loss_fn, self._user_step, self.optimizer)

    def with_optimizer(self, optimizer: Optimizer) -> Step:
        """Return the same step with another optimizer."""
        return Step(self.model, self._source, self._loss_fn, self._user_step, optimizer)

    @property
    def is_users_own(self) -> bool:
        """Whether `step=` was given, so that this object knows no inputs of its own."""
        return self._user_step is not None

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensors given to the model by path; empty for a user's own step."""
        return dict(self._source.peek().tensors()) if self._source is not None else {}

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional and the keyword arguments of the model's call; empty as `inputs` is."""
        call = self._source.peek() if self._source is not None else Call()
        return call.args, call.kwargs

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The user's own functions that a run calls, by the argument that brought them."""
        source = self._source.function if self._source is not None else None
        own = {"step": self._user_step, "loss_fn": self._loss_fn, "inputs": source}
        return {name: function for name, function in own.items() if function is not None}

    @property
    def input_tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors given to the model; empty for a user's own step, which makes its own."""
        return tuple(self.inputs.values())

    def run(self, *, copy_outputs: bool = False) -> tuple[torch.Tensor, ...]:
        """Run the step once.

        The output is released once the loss exists, as in a loop that writes
        ``loss = model(**batch).loss; loss.backward()``. A loop that holds its outputs through
        backward needs more: give it as `step`, so that they live as long as its code lets them.

        Args:
            copy_outputs: return copies, in host memory, of the tensors of the forward's output; for
                a user's own step of those that it returned. Otherwise nothing is returned. The
                outputs themselves are never kept alive.

        Raises:
            StepError: the model, the loss function, backward, the optimizer or the user's own step
                raised (chained), or the loss is not a scalar that requires a gradient.
        """
        with torch.inference_mode(False), torch.enable_grad(), _no_cached_casts():
            if self._source is None:
                returned = self._run_users_own()
                return host_copies(returned) if copy_outputs else ()
            return self._run_plain(self._source, copy_outputs)

    def describe(self) -> StepInfo:
        """Describe the step for a plan or a profile.

        Of a user's own step only a run shows the inputs, autocast and how often it calls the
        model: describe it after one.
        """
        device = model_device(self.model).type
        seen = self._seen if self._seen.count else None
        own = self._seen.inputs if self._source is None else self._source.peek().specs()
        return StepInfo(
            inputs=own,
            device=device,
            autocast=seen.autocast if seen else autocast_dtype(device),
            optimizer=type(self.optimizer).__name__ if self.optimizer is not None else "",
            root_calls=seen.count if seen else 1,
            mode=mode_of(self.model),
        )

    def _run_plain(self, source: CallSource, copy_outputs: bool) -> tuple[torch.Tensor, ...]:
        call = source.take()
        with _explained(f"the forward of {type(self.model).__name__}", "call model(...) by hand"):
            output = self.model(*call.args, **call.kwargs)
        with _explained("the loss function", "call loss_fn(model(...)) by hand"):
            loss = self._loss_fn(output)
        check_loss(loss)
        copies = host_copies(output) if copy_outputs else ()
        output = None
        with _explained("the backward pass", "call loss.backward() by hand"):
            loss.backward()
        if self.optimizer is not None:
            self._update(self.optimizer)
        return copies

    def _update(self, optimizer: Optimizer) -> None:
        fix = "pass step=fn where fn(model) runs the whole step, the optimizer's own way"
        with _explained(f"the step of {type(optimizer).__name__}", fix):
            optimizer.step()

    def _run_users_own(self) -> Any:
        assert self._user_step is not None
        step_errors = _explained("the step function", "call step(model) by hand")
        before = None if self._has_backward else BackwardTraces(self.model)
        with step_errors, self._seen.watching(self.model, before):
            held = self._user_step(self.model)
        if before is not None:
            before.check(self.model)
            self._has_backward = True
        return held


def make_step(
    model: nn.Module,
    *,
    inputs: object = None,
    loss_fn: Callable[[Any], object] | None = None,
    step: Callable[[nn.Module], object] | None = None,
    optimizer: Optimizer | None = None,
    fresh_inputs: bool = False,
) -> Step:
    """Build the training step that a plan is made for.

    Args:
        model: the model, in the mode (train or eval) in which it is trained.
        inputs: a tensor, a tuple (positional), a dict (keyword), or a callable that returns
            ``(args, kwargs)``. None takes what the model itself offers.
        loss_fn: from the model's output to a scalar. By default the output's own loss, or the sum
            of its floating-point tensors.
        step: the training loop's own step; ``step(model)`` runs forward, backward and, where there
            is one, the optimizer. Excludes `inputs` and `loss_fn`.
        optimizer: its state counts as memory, and without `step` the step ends with its update.
        fresh_inputs: call the inputs callable for every run. By default it is called once, so that
            every run computes the same.

    Raises:
        InvalidModelError: not a module, uninitialised, or nothing in it requires a gradient.
        InvalidInputsError: arguments of the wrong type or that exclude each other, or inputs on
            another device than the model.
        ProfileNotFoundError: no inputs given and none known.

    >>> layer = nn.Linear(2, 3)
    >>> step = make_step(layer, inputs=torch.ones(4, 2))
    >>> [output.shape for output in step.run(copy_outputs=True)]
    [torch.Size([4, 3])]
    >>> layer.weight.grad.shape
    torch.Size([3, 2])
    """
    checks.check_model(model)
    checks.check_arguments(inputs, loss_fn, step, optimizer)
    checks.check_optimizer(model, optimizer)
    source = None if step is not None else _source(model, inputs, fresh_inputs)
    made = Step(model, source, loss_fn, step, optimizer)
    checks.check_gradients(model, made.inputs)
    checks.check_devices(model, made.inputs)
    return made


def _source(model: nn.Module, inputs: object, fresh: bool) -> CallSource:
    if inputs is None:
        from planner.training_step.inputs import resolve_inputs

        inputs = resolve_inputs(model)
    return call_source(inputs, fresh)


@contextmanager
def _no_cached_casts() -> Iterator[None]:
    """Begin and end without the weights that autocast has cast, as where each forward enters it.

    Where autocast is around many steps, its cache would outlive them, with stale weights.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


@contextmanager
def _explained(part: str, fix: str) -> Iterator[None]:
    try:
        yield
    except PlannerError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise StepError(f"{part} raised {type(error).__name__}", cause=text, fix=fix) from error
