"""Sharded units: where parameters come and go within a forward, a segment goes on in parts.

WHOLE PARAMETERS   fully sharded data parallelism (`FullyShardedDataParallel`, `fully_shard`)
                  gathers a unit's parameters before its forward and again before its backward,
                  and frees the memory in between. What is dropped within a unit is unpacked in
                  that unit's backward, when its parameters are there; those of any other unit may
                  be gone, or still on their way (the next one's are fetched ahead). So no replay
                  reaches across the edge of a sharded unit, and nothing is recorded while a unit
                  gathers or frees. The collectives are the wrapper's alone, in its own order.

A segment that holds such edges is closed at each and goes on behind it: it keeps what crosses the
edge. Wrapping may come after `apply`, so the edges are looked for whenever the model is called.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_WRAPPERS = ("FullyShardedDataParallel", "FSDPModule")


class PartGate:
    """Hook at the edge of a sharded unit.

    Attributes:
        runtime: the applied plan.
        goes_on: open the next part of the segment; else close the one that is open.
    """

    def __init__(self, runtime: Any, goes_on: bool) -> None:
        self.runtime = runtime
        self.goes_on = goes_on

    def __call__(self, module: nn.Module, *call: object) -> None:
        """Note the edge."""
        if not torch.compiler.is_compiling():
            self.runtime.part(self.goes_on)


def sharded_units(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each sharded unit of a model, with the module whose hooks see whole parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not torch.distributed.is_initialized():
        return
    kinds = tuple(getattr(fsdp, name) for name in _WRAPPERS if hasattr(fsdp, name))
    for module in model.modules():
        if isinstance(module, kinds):
            wraps = type(module).__name__ == _WRAPPERS[0]
            yield module, module.module if wraps else module


def part_at_shards(model: nn.Module, runtime: Any, hooks: list[Any]) -> None:
    """Hook the edges of sharded units that are not hooked yet; adds the removable handles."""
    for outer, inner in sharded_units(model):
        if _is_parted(outer, runtime):
            continue
        stop, go = PartGate(runtime, False), PartGate(runtime, True)
        # `fully_shard` gathers and frees in hooks of the unit itself: ours lie around them.
        hooks.append(outer.register_forward_pre_hook(stop, prepend=outer is inner))
        hooks.append(inner.register_forward_pre_hook(go))
        hooks.append(inner.register_forward_hook(stop, prepend=True))
        hooks.append(outer.register_forward_hook(go))


def _is_parted(module: nn.Module, runtime: Any) -> bool:
    gates = (hook for hook in module._forward_pre_hooks.values() if isinstance(hook, PartGate))
    return any(gate.runtime is runtime for gate in gates)


def warn_of_parts(segment: str) -> None:
    """Say that a segment holds more than its plan counts with."""
    warnings.warn(
        f"segment {segment} reaches across the edges of sharded units; it is replayed in parts, "
        "one for each unit, and what passes from part to part stays in memory, which the plan's "
        "predicted peak does not count",
        RuntimeWarning,
        stacklevel=2,
    )
