"""Writes the `Script` of a step while it runs, from the model's hooks and a torch function mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from planner.errors import PlannerError
from planner.estimate.fake_tensors import Faker
from planner.online.script import Action, Ref, Script, autocast_in_force, storage_bytes
from planner.online.step_tail import BACKWARDS, TailMode
from planner.training_step.call import Call
from planner.training_step.step import autocast_dtype, model_device
from planner.training_step.tree import tensors_with_paths

MOST_ACTIONS = 10_000
"""With more calls between forward and backward, the loop is taken to have no backward."""

_UNSEEN = (
    "the loss is computed by code that torch functions do not show, such as a"
    " torch.autograd.Function or a compiled function"
)


class ScriptWriter:
    """Writes one step, from the model's first call on.

    Values are numbered in order of first sight. The tensor objects, which are not kept alive, stand
    for the values.
    """

    def __init__(self, model: nn.Module) -> None:
        self.script = Script(model_device(model).type)
        self._names = {id(t): name for name, t in model.named_buffers()}
        self._names.update({id(t): name for name, t in model.named_parameters()})
        self._numbers = WeakIdKeyDictionary()  # type: ignore[no-untyped-call, unused-ignore]
        self._requires_grad: dict[int, bool] = {}  # of what was made within the step
        self._next = 0
        self._faker = Faker()  # holds what it was given
        self._mode: TailMode | None = None

    # -- the model's calls --------------------------------------------------------------------

    def model_called(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The model is called: what it does inside is not written down."""
        self.stop_writing()
        script = self.script
        if not script.calls:
            script.autocast = autocast_dtype(script.device)
        script.calls.append(Call(args, kwargs).specs())
        self._add(None, args, kwargs)

    def model_returned(self, output: object) -> None:
        """The call returned: from here on, torch functions are written down."""
        if self.script.problem:
            return
        self._note_results(self.script.actions[-1], output)
        self._mode = TailMode(self._on_function)
        self._mode.open()

    @property
    def is_waited_for(self) -> bool:
        """Whether something that the model returned is still there, so that a backward may come."""
        made = self._requires_grad
        return any(number in made for number in self._numbers.values())

    def finish(self) -> Script:
        """End the step and return its script."""
        self.stop_writing()
        self._faker = Faker()
        self._numbers = WeakIdKeyDictionary()  # type: ignore[no-untyped-call, unused-ignore]
        if not self.script.problem:
            self.script.cut_to_needed()
        return self.script

    def stop_writing(self) -> None:
        """The step is over, or the model is called again."""
        if self._mode is not None:
            self._mode.remove()
            self._mode = None

    # -- what runs in between -----------------------------------------------------------------

    def _on_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
        action = None
        if not self.script.problem and _can_make_a_tensor(func) and self._follows((args, kwargs)):
            action = self._add(func, args, kwargs)
            self._faker = Faker() if func in BACKWARDS else self._faker
        try:
            result = func(*args, **kwargs)
        except BaseException:
            if action is not None:
                self.script.actions.remove(action)
                if func in BACKWARDS and self._mode is not None:
                    self._mode.close()
            raise
        if action is None:
            return result
        if func in BACKWARDS or _ends_a_step(func, kwargs):
            action.backward = True
            self.script.live_at_end = set(self._numbers.values())
        if func not in BACKWARDS:
            self._note_results(action, result)
        return result

    def _follows(self, arguments: object) -> bool:
        """Whether a call works on what came from the model or, before backward, on its weights."""
        weights = torch.is_grad_enabled() and not self.script.is_whole
        for tensor in _tensors(arguments):
            if self._numbers.get(tensor) in self._requires_grad:
                return True
            if weights and tensor.requires_grad and id(tensor) in self._names:
                return True
        return False

    def _add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> Action | None:
        script = self.script
        try:
            tree = pytree.tree_map_only(torch.Tensor, self._ref, (args, kwargs))
        except Exception as error:  # whatever it is, the training goes on
            script.problem = error.what if isinstance(error, PlannerError) else repr(error)
            return None
        action = Action(func, tree, torch.is_grad_enabled(), autocast_in_force(script.device))
        script.actions.append(action)
        if len(script.actions) > MOST_ACTIONS:
            script.problem = f"no backward came within {MOST_ACTIONS} calls of torch functions"
        return action

    def _note_results(self, action: Action, result: object) -> None:
        numbers = []
        found = [tensor for _, tensor in tensors_with_paths(result)]
        for tensor in found:
            number = self._numbers.get(tensor)
            if number is None:
                number = self._number(tensor)
            self._requires_grad[number] = tensor.requires_grad
            numbers.append(number)
        action.results = tuple(numbers)
        action.sizes = tuple(storage_bytes(tensor) for tensor in found)

    def _ref(self, tensor: torch.Tensor) -> Ref:
        number = self._numbers.get(tensor)
        if number is None:
            number = self._number(tensor)
            self._came_from_outside(tensor, number)
        elif tensor.requires_grad and not self._requires_grad.get(number, True):
            self.script.problem = _UNSEEN
        return Ref(number)

    def _number(self, tensor: torch.Tensor) -> int:
        number = self._numbers[tensor] = self._next
        self._next += 1
        return number

    def _came_from_outside(self, tensor: torch.Tensor, number: int) -> None:
        script = self.script
        name = self._names.get(id(tensor))
        if name is not None:
            script.names[number] = name
            return
        if tensor.grad_fn is not None and self._comes_from_model(tensor):
            script.problem = _UNSEEN
        small = tensor.numel() == 1 and tensor.device.type == "cpu" and not tensor.requires_grad
        script.outside[number] = tensor.detach().clone() if small else self._faker(tensor)

    def _comes_from_model(self, tensor: torch.Tensor) -> bool:
        """Whether the model's outputs are among what a tensor was computed from."""
        made = self._requires_grad
        pairs = self._numbers.items()
        ends = {t.grad_fn for t, number in pairs if number in made and t.grad_fn is not None}
        seen, todo = set(ends), [tensor.grad_fn]
        while todo:
            node = todo.pop()
            if node in ends:
                return True
            if node is not None and node not in seen:
                seen.add(node)
                todo += [following for following, _ in node.next_functions]
        return False


def _tensors(tree: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _can_make_a_tensor(func: Callable[..., object]) -> bool:
    """Whether a call can make a tensor: reading an attribute such as `shape` is skipped."""
    if func.__name__ == "__set__":
        return False
    if func.__name__ == "__get__":
        return getattr(func, "__self__", None) in _VIEWS
    return True


_VIEWS = tuple(vars(torch._C.TensorBase)[name] for name in ("T", "mT", "H", "mH", "data", "real"))


def _ends_a_step(func: object, kwargs: dict[str, object]) -> bool:
    """Whether gradients are returned for good, rather than to be part of a loss."""
    return func is torch.autograd.grad and not kwargs.get("create_graph")
