"""Which unit is running? Read off the Python stack, so that nothing needs to be installed.

Used while a segment or a profile is recorded, never while a segment is followed, and by both in
the same way, so that op addresses agree.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

_CALL = nn.Module._call_impl.__code__


class UnitNames:
    """Qualified names of a model's modules, by identity (the first name of a shared one)."""

    def __init__(self, root: nn.Module) -> None:
        self._names = {
            id(module): name
            for name, module in root.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)  # cannot be hooked
        }

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
