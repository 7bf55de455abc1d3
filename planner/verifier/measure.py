"""One step, run plain or planned from the same state: its peak, or its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from planner.memory.allocator import release_cached
from planner.memory.meter import meter_for
from planner.profiler.build import alive_before, find_existing
from planner.profiler.timing import time_run
from planner.replay.audit import same_bits
from planner.training_step.same_state import from_same_state
from planner.training_step.step import Step, model_device
from planner.training_step.tree import host_copy

Tensors = dict[str, torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Results:
    """Everything of a step that a plan must not change."""

    outputs: Tensors
    gradients: Tensors
    buffers: Tensors
    replayed_ops: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What one step took at most: live bytes, and what the allocator held for them (or None)."""

    peak_bytes: int
    reserved_bytes: int | None


def measure_memory(step: Step) -> Memory:
    """Return what one step takes, from a device where nothing is cached."""
    device = model_device(step.model)
    if step.existing is None and step.is_users_own:
        find_existing(step)
    with from_same_state(step):
        release_cached(device)
        with meter_for(device, alive_before(step)) as meter:
            step.run()
        return Memory(meter.peak_bytes, meter.reserved_bytes)


def measure_both(step: Step) -> list[Memory]:
    """Return what a planned step takes when it records and when it follows.

    Where cuDNN tries kernels out, in workspaces of their own, a step has done so before.
    """
    runs = 2 + torch.backends.cudnn.benchmark
    return [measure_memory(step) for _ in range(runs)][-2:]


def measure_peak(step: Step) -> int:
    """Return the most live bytes of one step."""
    return measure_memory(step).peak_bytes


def run_for_results(step: Step, replayed: Callable[[], int] = lambda: 0) -> Results:
    """Run one step and return copies of what it computed.

    Args:
        replayed: returns how many ops have been replayed so far.
    """
    with from_same_state(step):
        before = replayed()
        outputs = step.run(copy_outputs=True)
        model = step.model
        gradients: Tensors = {n: _copy(p.grad) for n, p in model.named_parameters()}
        gradients.update({f"input {n}": _copy(t.grad) for n, t in step.inputs.items()})
        return Results(
            {str(i): output for i, output in enumerate(outputs)},
            gradients,
            {name: _copy(buffer) for name, buffer in model.named_buffers()},
            replayed() - before,
        )


def measure_time(step: Step) -> int:
    """Return the time of one step in nanoseconds."""
    with from_same_state(step):
        return time_run(step.run, model_device(step.model))


def count_forwards(step: Step) -> dict[str, int]:
    """Return how often each unit's forward runs during one whole step, backward included."""
    counts: dict[str, int] = {}
    handles = []
    with from_same_state(step):
        for name, module in step.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue

            def hook(module: nn.Module, args: object, name: str = name) -> None:
                counts[name] = counts.get(name, 0) + 1

            handles.append(module.register_forward_pre_hook(hook))
        try:
            step.run()
        finally:
            for handle in handles:
                handle.remove()
    return counts


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else host_copy(tensor)


def same_tensors(a: Tensors, b: Tensors) -> bool:
    """Whether two sets of tensors agree bit for bit."""
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


class Equality(NamedTuple):
    """Which results of two steps agree bit for bit."""

    gradients: bool
    outputs: bool
    buffers: bool


def same_results(a: Results, b: Results) -> Equality:
    """Return which results of two steps agree bit for bit."""
    return Equality(
        same_tensors(a.gradients, b.gradients),
        same_tensors(a.outputs, b.outputs),
        same_tensors(a.buffers, b.buffers),
    )


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.layout is not torch.strided or type(a) is not torch.Tensor:
        return torch.equal(a, b)
    return same_bits(a, b)
