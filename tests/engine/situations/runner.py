"""Trains a situation with and without something applied to its model, and compares the two.

Both runs start from the same seeds and see the same batches, so whatever differs between two
`Record`s was caused by what was applied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from planner.memory.meter import meter_for, step_tensors

from .situation import Setup, Situation, Tolerance

Prepare = Callable[[Setup], Any]

BUILD_SEED, TRAIN_SEED = 3, 41
LEARNING_RATE = 0.05
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass
class Record:
    """Everything of a training run that recomputation must not change."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor | None]] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    after: Any = None


def seed_everything(seed: int) -> None:
    """Seed torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def built(situation: Situation) -> Iterator[Setup]:
    """Build the situation from fixed seeds and clean up behind it."""
    seed_everything(BUILD_SEED)
    setup = situation.build()
    try:
        yield setup
    finally:
        if setup.cleanup is not None:
            setup.cleanup()


def run_step(setup: Setup, model: nn.Module, step: int) -> list[float]:
    """Run forward and backward of every micro-batch of one step; returns their losses."""
    losses = []
    for part in range(setup.accumulate):
        args, kwargs = setup.batches(step * setup.accumulate + part)
        out = setup.call(model, args, kwargs)
        loss = setup.loss(out)
        losses.append(float(loss.detach()))
        setup.backward(loss, out, model)
        del out, loss
    return losses


def train(situation: Situation, prepare: Prepare | None = None) -> Record:
    """Train the situation, with `prepare(setup)` done to its model first.

    What `prepare` returns is kept alive until training is over.
    """
    with built(situation) as setup:
        kept = prepare(setup) if prepare is not None else None
        model = setup.wrap(setup.model) if setup.wrap is not None else setup.model
        seed_everything(TRAIN_SEED)
        record = _train(setup, model)
        del kept
        return record


def _train(setup: Setup, model: nn.Module) -> Record:
    inner, record = setup.model, Record()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=LEARNING_RATE)
    for step in range(setup.steps):
        optimizer.zero_grad()
        record.losses += run_step(setup, model, step)
        record.gradients.append({n: copied(p.grad) for n, p in inner.named_parameters()})
        optimizer.step()
        if setup.state is not None:
            record.state.append(copied(setup.state(inner)))
    record.parameters = {n: copied(p) for n, p in inner.named_parameters()}
    record.buffers = {n: copied(b) for n, b in inner.named_buffers()}
    record.after = copied(setup.after(inner)) if setup.after is not None else None
    return record


def copied(value: Any) -> Any:
    """Copy the tensors of a nest, so that later steps cannot change them."""
    if isinstance(value, Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        return whole.detach().clone()
    if isinstance(value, dict):
        return {key: copied(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(member) for member in value]
    return value


def differences(plain: Record, other: Record, tolerance: Tolerance) -> list[str]:
    """Name everything in which two runs differ; an empty list means the same training."""
    found: list[str] = []
    for aspect in ("losses", "gradients", "state", "parameters", "buffers", "after"):
        left, right = getattr(plain, aspect), getattr(other, aspect)
        found += _unequal(left, right, tolerance, aspect)
    return found


def _unequal(left: Any, right: Any, tolerance: Tolerance, path: str) -> list[str]:
    if type(left) is not type(right):
        return [f"{path}: {type(left).__name__} became {type(right).__name__}"]
    if isinstance(left, dict) and left.keys() == right.keys():
        pairs = [(key, left[key], right[key]) for key in left]
    elif isinstance(left, list) and len(left) == len(right):
        pairs = [(index, *pair) for index, pair in enumerate(zip(left, right, strict=True))]
    else:
        return [] if _same(left, right, tolerance) else [f"{path}: {_gap(left, right)}"]
    return [found for key, a, b in pairs for found in _unequal(a, b, tolerance, f"{path}.{key}")]


def _same(left: Any, right: Any, tolerance: Tolerance) -> bool:
    if isinstance(left, float):
        left, right = torch.tensor(left), torch.tensor(right)
    if not isinstance(left, Tensor):
        return bool(left == right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if tolerance.exact:
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
    close = torch.allclose(
        left.double(), right.double(), tolerance.relative, tolerance.absolute, equal_nan=True
    )
    return bool(close)


def _gap(left: Any, right: Any) -> str:
    if isinstance(left, Tensor) and left.shape == right.shape:
        return f"largest difference {(left.double() - right.double()).abs().max():.3g}"
    return f"{left!r} became {right!r}"[:120]


class _OpCounter(TorchDispatchMode):
    """Counts kernels; views are left out, since every bookkeeping makes some."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count_ops(situation: Situation, prepare: Prepare | None = None) -> int:
    """Count the ops of one step of the unwrapped model, forward and backward."""
    with built(situation) as setup:
        kept = prepare(setup) if prepare is not None else None
        seed_everything(TRAIN_SEED)
        with _OpCounter() as counter:
            run_step(setup, setup.model, 0)
        del kept
        return counter.count


def peak_bytes(situation: Situation, prepare: Prepare | None = None) -> int:
    """Measure the peak of one step of the unwrapped model, parameters and buffers included."""
    with built(situation) as setup:
        kept = prepare(setup) if prepare is not None else None
        seed_everything(TRAIN_SEED)
        if situation.needs == "compile":  # a first step compiles, which allocates
            run_step(setup, setup.model, 0)
            setup.model.zero_grad(set_to_none=True)
        with meter_for("cpu", step_tensors(setup.model)) as meter:
            run_step(setup, setup.model, 0)
        del kept
        return meter.peak_bytes


def resident_bytes(model: nn.Module) -> int:
    """Sum up parameters, buffers and the gradients of a step, which no plan can give up."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held = [*model.parameters(), *model.buffers(), *trained]
    return sum(tensor.nbytes for tensor in held)


def outer_blocks(model: nn.Module) -> list[str]:
    """Name the outermost blocks: elements of containers, else the root's direct children.

    A module that is registered under several names is listed under its first one.
    """
    named = list(_elements(model, ""))
    named = named or list(model.named_children())
    first = {id(module): name for name, module in reversed(named)}
    return [name for name, module in named if first[id(module)] == name]


def _elements(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        callable_child = not isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if isinstance(module, CONTAINERS) and callable_child:
            yield path, child
        else:
            yield from _elements(child, f"{path}.")
