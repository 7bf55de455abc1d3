"""What a training step did around the model, written down so that it can be played again.

A `Script` is the calls of the model and, between them and backward, the torch functions that the
training loop applied to what came out: the loss, whatever code computes it. It holds no tensor of
the step: values are numbered, and those that came from outside are stood in for by fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from planner.documents.step import TensorSpec
from planner.training_step.storages import storages_of
from planner.training_step.tree import tensors_with_paths


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands where a tensor stood among the arguments of a call."""

    number: int


@dataclass(slots=True)
class Action:
    """One call.

    Attributes:
        function: a torch function, or None for the model itself.
        arguments: positional and keyword arguments with `Ref` in place of tensors.
        results: the numbers of the tensors in what it returned, in order.
        sizes: the bytes of their storages, which are not always those that the shape needs.
        grad: whether gradients were on.
        autocast: the dtype of autocast on the model's kind of device, None where it was off.
        needed: whether a backward depends on it.
        backward: whether it is one.
    """

    function: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    grad: bool = True
    autocast: torch.dtype | None = None
    results: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    needed: bool = False
    backward: bool = False

    def uses(self) -> set[int]:
        """Return the numbers of the values among the arguments."""
        leaves = pytree.tree_leaves(self.arguments)
        return {leaf.number for leaf in leaves if isinstance(leaf, Ref)}


@dataclass(slots=True)
class Script:
    """One step.

    Attributes:
        device: kind of the model's device.
        actions: in order.
        outside: stand-ins for tensors from outside, by number.
        names: parameters and buffers of the model that were used directly, by number.
        live_at_end: values that the loop still referred to when backward was over.
        calls: the tensors among the arguments of each call of the model.
        autocast: as a profile names it, at the model's first call.
        problem: why the step cannot be played again, empty where it can.
    """

    device: str
    actions: list[Action] = field(default_factory=list)
    outside: dict[int, torch.Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    live_at_end: set[int] = field(default_factory=set)
    calls: list[tuple[TensorSpec, ...]] = field(default_factory=list)
    autocast: str = ""
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it reaches to a backward."""
        return any(action.backward for action in self.actions)

    def cut_to_needed(self) -> None:
        """Find what backward depends on: only that has to succeed when the step is played.

        Calls of the model on which no backward depends are none of the step's.
        """
        needed: set[int] = set()
        for action in reversed(self.actions):
            changed = {*action.results, *(action.uses() if _writes(action) else ())}
            action.needed = action.backward or bool(needed & changed)
            if action.needed:
                needed |= action.uses()
        model_calls = [action for action in self.actions if action.function is None]
        pairs = zip(self.calls, model_calls, strict=False)
        self.calls = [call for call, action in pairs if action.needed]
        self.actions = [a for a in self.actions if a.needed or a.function is not None]


def play(script: Script, model: nn.Module, outside: Mapping[int, object]) -> list[Any]:
    """Run a step again on other tensors; returns what stays alive to its end.

    Args:
        script: the step.
        model: the model that it called.
        outside: tensors to take for those from outside, by number.
    """
    values = {**outside, **_named(script, model)}
    last_uses = _last_uses(script)
    outputs: list[Any] = []
    later = [*(action.autocast for action in script.actions[1:]), None]
    for number, action in enumerate(script.actions):
        result = _act(action, script.device, model, values)
        if action.function is None and script.live_at_end.issuperset(action.results):
            outputs.append(result)  # else the loop let go of it, at the latest in backward
        del result
        if action.autocast is not None and later[number] is None:
            torch.clear_autocast_cache()  # by itself only the outermost context does so
        for value in last_uses.get(number, ()):
            values.pop(value, None)
    return [outputs, values]


def _act(action: Action, device: str, model: nn.Module, values: dict[int, object]) -> Any:
    if not action.uses() <= values.keys():
        return None  # it looked at the result of something that was passed over
    args, kwargs = pytree.tree_map_only(Ref, lambda ref: values[ref.number], action.arguments)
    try:
        with torch.set_grad_enabled(action.grad), _autocast(device, action.autocast):
            result = (action.function or model)(*args, **kwargs)
    except Exception:
        if action.needed:
            raise
        return None  # a metric that asks for contents, say
    found = [tensor for _, tensor in tensors_with_paths(result)]
    values.update(zip(action.results, found, strict=False))
    for tensor, size in zip(found, action.sizes, strict=False):
        _grow(tensor, size)
    return result


def _grow(tensor: torch.Tensor, size: int) -> None:
    """Let a fake take what the kernel took: the CPU's `mse_loss` keeps room for every element."""
    if isinstance(tensor, FakeTensor) and tensor.untyped_storage().nbytes() < size:
        tensor.untyped_storage().resize_(size)


def storage_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the storages behind a tensor."""
    return sum(storage.nbytes() for storage in storages_of(tensor))


def _writes(action: Action) -> bool:
    """Whether a call may write into its arguments, by torch's names for those that do."""
    name = getattr(action.function, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or "out" in action.arguments[1]


def _named(script: Script, model: nn.Module) -> dict[int, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    tensors.update(model.named_buffers(remove_duplicate=False))
    return {number: tensors[name] for number, name in script.names.items()}


def _last_uses(script: Script) -> dict[int, list[int]]:
    """The values to let go of after each action, as the loop did."""
    last: dict[int, int] = {}
    for number, action in enumerate(script.actions):
        last.update(dict.fromkeys((*action.results, *action.uses()), number))
    found: dict[int, list[int]] = {}
    for value, number in last.items():
        if value not in script.live_at_end and value not in script.outside:
            found.setdefault(number, []).append(value)
    return found


def autocast_in_force(device: str) -> torch.dtype | None:
    """Return autocast's dtype for a kind of device, None where it is off."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def _autocast(device: str, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, dtype=dtype, enabled=dtype is not None)
