"""Trains a model plain and with units given up, side by side; used by the tests of the engine.

Whatever differs in a bit between the two runs is an error of the engine: both start from copies of
one model, the same seeds and the same inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from planner.applier.apply import Handle, apply, manual_plan
from planner.replay.audit import same_bits

Inputs = Callable[[int], tuple[Any, ...]]


def weighted_sum(output: Any) -> Tensor:
    """A scalar of every floating-point tensor of an output, each element with its own weight."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_complex():
            leaf = torch.view_as_real(leaf.resolve_conj())
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            weights = torch.arange(leaf.numel(), dtype=torch.float64).cos().view(leaf.shape)
            total = total + (leaf.double() * weights).sum()
    return total


def copied(value: Any) -> Any:
    """A copy of the tensors of an output, densely stored."""
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return [dense(leaf.detach()).clone() for leaf in leaves]


def dense(tensor: Tensor) -> Tensor:
    """The same values in plain strided memory."""
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def run_step(model: nn.Module, inputs: Sequence[Any], loss: Callable[[Any], Tensor]) -> list[Any]:
    """Run forward and backward; returns outputs, gradients (also of inputs) and buffers."""
    output = model(*inputs)
    seen = copied(output)
    value = loss(output)
    if value.requires_grad:
        value.backward()
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    tensors = [*model.parameters(), *leaves]
    seen += [None if t.grad is None else dense(t.grad).detach().clone() for t in tensors]
    seen += [buffer.detach().clone() for buffer in model.buffers()]
    return seen


def train(
    model: nn.Module,
    inputs: Inputs,
    batches: Sequence[int],
    prepare: Callable[[nn.Module], Handle | None] = lambda model: None,
    loss: Callable[[Any], Tensor] = weighted_sum,
) -> tuple[list[Any], Handle | None]:
    """Train a copy of the model, one step for each batch size; returns all that it computed."""
    model = copy.deepcopy(model)
    handle = prepare(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    seen: list[Any] = []
    torch.manual_seed(11)
    for batch in batches:
        seen += run_step(model, inputs(batch), loss)
        with torch.no_grad():
            for parameter in trained:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-0.01)
                    parameter.grad = None
    seen.append(torch.get_rng_state())
    return seen, handle


def give_up(*units: str) -> Callable[[nn.Module], Handle]:
    """Return a function that applies a plan which gives these units up entirely."""
    return lambda model: apply(model, manual_plan(model, units))


def assert_same(plain: list[Any], planned: list[Any]) -> None:
    """Fail unless two runs agree in every bit."""
    assert len(plain) == len(planned)
    for index, (a, b) in enumerate(zip(plain, planned, strict=True)):
        assert (a is None) == (b is None), f"item {index}: {a} became {b}"
        assert a is None or same_bits(a, b), f"item {index} differs"


def assert_clean() -> None:
    """Fail if a dispatch mode or a saved-tensor hook was left behind in this thread."""
    assert not _get_current_dispatch_mode_stack()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
