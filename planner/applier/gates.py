"""The hooks that a plan puts on a model's units: they open and close segments, no more.

Hooks live in dicts that every module has, so the module keeps its class, names, keys and
attributes; they are plain objects, so a hooked model can be deep-copied and pickled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.applier.compiling import next_number, traced
from planner.applier.fallback import install_checkpoint
from planner.applier.runtime import Runtime
from planner.applier.sharded import part_at_shards

SCRIPTED = "a ScriptModule takes no hooks"


class Gate:
    """Tells the runtime that a unit is entered or left; a compiled one warns (see `compiling`).

    Args:
        runtime: the runtime that is notified.
        unit: the unit.
        number: of the plan on its model; by default a new one.
    """

    def __init__(self, runtime: Runtime, unit: str, number: int = -1) -> None:
        self.runtime = runtime
        self.unit = unit
        self.number = next_number() if number < 0 else number


class EnterGate(Gate):
    """Forward pre-hook of a unit at which a segment opens or closes."""

    def __call__(self, module: nn.Module, args: object) -> None:
        """Note the entry."""
        if torch.compiler.is_compiling():
            traced(self.number, self.unit)
        else:
            self.runtime.entered(self.unit)


class ExitGate(Gate):
    """Forward hook of a unit at which a segment opens or closes."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """Note the exit."""
        if not torch.compiler.is_compiling():
            self.runtime.left(self.unit)


class RootEnterGate(Gate):
    """Forward pre-hook of the model: a forward begins."""

    def __call__(self, module: nn.Module, args: object) -> None:
        """Note the begin."""
        if torch.compiler.is_compiling():
            traced(self.number, self.unit)
        else:
            self.runtime.forward_begins(module)


class RootExitGate(Gate):
    """Forward hook of the model, called on errors too: a forward ends."""

    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        """Note the end."""
        if not torch.compiler.is_compiling():
            self.runtime.forward_ends()


def install(model: nn.Module, runtime: Runtime) -> list[Any]:
    """Hook the units of the runtime's plan; returns the removable hook handles, a list that grows.

    Segments at units that cannot be hooked are left out (`Runtime.left_out`). If a hook cannot be
    registered, those already there are removed and the error is raised.
    """
    modules = dict(model.named_modules())
    scripted = {n for n, m in modules.items() if isinstance(m, torch.jit.ScriptModule)}
    runtime.leave_out(scripted, SCRIPTED)
    runtime.hooks = []
    number = next_number()
    if "" in scripted:
        return []
    handles = runtime.hooks  # grows when a sharded unit is met later
    try:
        handles.append(
            model.register_forward_pre_hook(RootEnterGate(runtime, "", number), prepend=True)
        )
        for unit, edge in runtime.edges():
            if edge == "enter":
                hook = modules[unit].register_forward_pre_hook(EnterGate(runtime, unit, number))
            else:
                hook = modules[unit].register_forward_hook(
                    ExitGate(runtime, unit, number), always_call=True
                )
            handles.append(hook)
        for segment in runtime.plan.segments:
            if segment.runtime == "checkpoint":
                handles += install_checkpoint(modules[segment.start.unit])
        handles.append(model.register_forward_hook(RootExitGate(runtime, ""), always_call=True))
        part_at_shards(model, runtime, handles)
    except BaseException:
        for handle in handles:
            handle.remove()
        raise
    return handles
