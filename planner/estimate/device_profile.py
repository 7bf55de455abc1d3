"""`estimate`: the profile of a step on a device that need not be there, and on many ranks.

Called by `planner.api` for models on the meta device and wherever a device or sharding is named.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from planner.documents import Profile
from planner.errors import InvalidInputsError
from planner.estimate.cost_model import CostModel
from planner.estimate.cuda_kernels import CudaKernels
from planner.estimate.devices import DeviceSpec, device_spec
from planner.estimate.fake_profile import build_fake_profile
from planner.estimate.sharding import shard_profile
from planner.memory.peak import peak_of
from planner.memory.rounding import CUDA, in_blocks
from planner.training_step.step import Step, model_device

_UNKNOWN_WORKSPACE = ("aten.mkldnn_rnn_layer.default", "aten._cudnn_rnn.default")
"""Kernels that save a workspace whose size only they know; without running it is taken to be 0."""

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def estimate(
    step: Step,
    spec: str | DeviceSpec | None = None,
    shards: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Return the profile of a step that is not run, on a device of the table.

    Args:
        step: the training step; its model may be on the meta device.
        spec: a device of `planner.estimate.devices`, its name, or the path of a device file; by
            default the CPU.
        shards: ranks that share parameters, gradients and optimizer state.
        progress: called with the name of each run as it begins.

    Raises:
        InvalidInputsError: no such device, or fewer than one rank.
        StepError, InvalidModelError: see `planner.estimate.fake_profile.build_fake_profile`.
    """
    if shards < 1:
        raise InvalidInputsError(
            "a step needs a rank to run on", f"shards={shards}", fix="shards=1"
        )
    device = device_spec(spec or "cpu")
    here = model_device(step.model)
    pretends = device.kind == "cuda" and here.type != "cuda"  # the same plan on any machine
    where = None if device.kind == here.type else torch.device("cpu")  # None: where they are
    if device.kind == "cuda" and step.optimizer is not None:
        step = _with_foreach(step, step.optimizer)
    with CudaKernels() if pretends else nullcontext():
        profile = build_fake_profile(step, CostModel(device), device=where, progress=progress)
    if device.kind == "cuda":
        profile = _in_blocks(profile)
    info = replace(profile.step, device=device.kind, estimated_for=device.name)
    return shard_profile(replace(profile, step=info), shards)


def remarks(profile: Profile) -> tuple[str, ...]:
    """Return what the reader of a plan should know about a profile that was estimated."""
    device = profile.step.estimated_for
    if not device:
        return ()
    used = {op.name for op in profile.ops}
    uncounted = (name for name in _UNKNOWN_WORKSPACE if name in used)
    return (
        f"times are estimated for {device} by a cost model; the step was not run",
        *(f"the workspace of {name} has an unknown size and is not counted" for name in uncounted),
    )


def on_meta(model: nn.Module) -> bool:
    """Return whether a model has shapes only."""
    return model_device(model).type == "meta"


def make_optimizer(
    given: torch.optim.Optimizer | str | None, model: nn.Module
) -> torch.optim.Optimizer | None:
    """Return the optimizer that was given, or one by name with its default settings.

    Raises:
        InvalidInputsError: no optimizer is called so.
    """
    if not isinstance(given, str):
        return given
    if given.lower() in ("", "none"):
        return None
    kind = _OPTIMIZERS.get(given.lower())
    if kind is None:
        raise InvalidInputsError(
            f"no optimizer is called {given!r}",
            cause="only some are known by name",
            fix=f"use none, {', '.join(_OPTIMIZERS)}, or pass the optimizer object",
        )
    return kind([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def _with_foreach(step: Step, optimizer: torch.optim.Optimizer) -> Step:
    """Let the optimizer work on lists of tensors, as it does by itself on CUDA."""
    groups = [dict(group) for group in optimizer.param_groups]
    for group in groups:
        if group.get("foreach", True) is None and not group.get("fused"):
            group["foreach"] = True
    copy = optimizer.__class__.__new__(optimizer.__class__)
    vars(copy).update(vars(optimizer), param_groups=groups)
    return step.with_optimizer(copy)


def _in_blocks(profile: Profile) -> Profile:
    """Count memory as CUDA's allocator does."""
    storages = in_blocks(profile.storages, CUDA)
    peak = peak_of(storages, len(profile.ops))
    return replace(profile, storages=storages, plain_peak_bytes=peak)
