"""The arguments of one call of the model, however the user gave them; used by `step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from planner.documents.step import TensorSpec
from planner.errors import InvalidInputsError, PlannerError
from planner.training_step.state_tensors import quietly
from planner.training_step.state_values import ValueSnapshot, put_back
from planner.training_step.tree import tensors_with_paths

_FORMS = "pass a tensor, a tuple (positional), a dict (keyword) or a callable -> (args, kwargs)"


@dataclass(frozen=True, slots=True)
class Call:
    """Positional and keyword arguments."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """List the tensors among the arguments with their paths, e.g. ``kwargs['mask']``."""
        args = tensors_with_paths(self.args, "args")
        return [*args, *tensors_with_paths(self.kwargs, "kwargs")]

    def specs(self) -> tuple[TensorSpec, ...]:
        """Describe the tensors among the arguments."""
        return tuple(
            TensorSpec(path, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for path, tensor in self.tensors()
        )


class CallSource:
    """Hands out the call for each run: always the same, or a new one each time.

    Args:
        make: makes a call.
        fresh: make a new call for every run.
        function: the user's own that makes the call, where there is one.
    """

    def __init__(
        self,
        make: Callable[[], Call],
        fresh: bool,
        function: Callable[[], object] | None = None,
    ) -> None:
        self.function = function
        self._make = make
        self._fresh = fresh
        self._next: Call | None = None

    def peek(self) -> Call:
        """Return the call that the next run will use."""
        if self._next is None:
            with self._left_as_it_was():
                self._next = self._make()
        return self._next

    def _left_as_it_was(self) -> AbstractContextManager[None]:
        """The training loop goes on drawing where it was: what the call took is put back."""
        if self.function is None or self._fresh:
            return nullcontext()
        values = ValueSnapshot()
        with quietly():
            values.add(self.function, "inputs")
        return put_back(values)

    def take(self) -> Call:
        """Return the call for a run."""
        call = self.peek()
        if self._fresh:
            self._next = None
        return call


def call_source(inputs: object, fresh: bool = False) -> CallSource:
    """Read `inputs` in any of its forms.

    Raises:
        InvalidInputsError: neither tensor, tuple, dict nor callable; later, when a callable
            raises or returns something else than ``(args, kwargs)``.
    """
    if isinstance(inputs, torch.Tensor):
        call = Call((inputs,))
    elif isinstance(inputs, tuple):
        call = Call(tuple(inputs))
    elif isinstance(inputs, Mapping):
        call = Call((), _keywords(inputs))
    elif callable(inputs):
        return CallSource(lambda: _from_callable(inputs), fresh, inputs)
    else:
        raise InvalidInputsError(
            f"inputs of type {type(inputs).__name__} are not understood",
            cause="a list can mean one argument or several" if isinstance(inputs, list) else "",
            fix=_FORMS,
        )
    return CallSource(lambda: call, fresh)


def _from_callable(make: Callable[[], object]) -> Call:
    try:
        made = make()
    except PlannerError:
        raise
    except Exception as error:
        raise InvalidInputsError(
            "the inputs callable raised",
            cause=f"{type(error).__name__}: {error}",
            fix="make inputs() work without arguments and return (args, kwargs)",
        ) from error
    if isinstance(made, (tuple, list)) and len(made) == 2:
        args, kwargs = made
        if isinstance(args, (tuple, list)) and isinstance(kwargs, Mapping):
            return Call(tuple(args), _keywords(kwargs))
    raise InvalidInputsError(
        f"the inputs callable returned a {type(made).__name__} that is not (args, kwargs)",
        cause="it returned the bare inputs",
        fix="return ((x,), {}) for positional or ((), {'x': x}) for keyword arguments",
    )


def _keywords(inputs: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in inputs if not isinstance(key, str)]
    if wrong:
        raise InvalidInputsError(
            f"the key {wrong[0]!r} of inputs is no argument name",
            cause="a dict is passed as keyword arguments",
            fix="pass inputs=(your_dict,) if the model takes the dict itself",
        )
    return dict(inputs)
