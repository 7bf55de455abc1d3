"""Which unit is running? Read off the Python stack, so that nothing needs to be installed.

Used while a segment or a profile is recorded, never while a segment is followed, and by both in
the same way, so that op addresses agree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn

_CALL = nn.Module._call_impl.__code__


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of a module are compiled, by `torch.compile` or `Module.compile`."""
    return module._compiled_call_impl is not None or hasattr(module, "_orig_mod")


def hookable(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and modules of a model whose hooks run when they are called.

    Those of scripted modules cannot be set, and those of compiled ones, and of all within them, are
    traced into their code.
    """
    inside = ""
    for name, module in root.named_modules():
        if inside and name.startswith(inside):
            continue
        if is_compiled(module):
            inside = f"{name}." if name else ""
        elif not isinstance(module, torch.jit.ScriptModule):
            yield name, module


class UnitNames:
    """Qualified names of a model's modules, by identity (the first name of a shared one)."""

    def __init__(self, root: nn.Module) -> None:
        self._names = {id(module): name for name, module in hookable(root)}

    def running(self) -> str:
        """Return the innermost unit of this model whose call is on the stack ("" if none)."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _CALL:
                name = self._names.get(id(frame.f_locals["self"]))
                if name is not None:
                    return str(name)
            frame = frame.f_back  # type: ignore[assignment]
        return ""
