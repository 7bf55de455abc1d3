"""Kernels that run without an op: a Triton launch inside a segment is recorded.

A kernel launched from Python (inside an `autograd.Function`, say) may write into any tensor, and no
op or version counter shows it. Triton calls hooks at each launch; ours notifies the open tape,
which takes all values that it knew as outside values from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


class Launch:
    """Stands for a launch in the records of a tape, where ops have their overload."""

    def __repr__(self) -> str:
        return "triton.launch"


LAUNCH = Launch()
_hooked: list[Any] = []


def watch_launches() -> None:
    """Hook Triton's launches, once, where Triton is in use."""
    runtime = getattr(getattr(sys.modules.get("triton"), "knobs", None), "runtime", None)
    chain: Any = getattr(runtime, "launch_enter_hook", None)
    if hasattr(chain, "add") and not any(chain is known for known in _hooked):
        chain.add(_launched)
        _hooked.append(chain)


listeners: list[Callable[[], object]] = []
"""Called at each launch, beside the modes on the stack."""


def _launched(*metadata: object) -> None:
    for listener in listeners:
        listener()
    for mode in _get_current_dispatch_mode_stack():
        launched = getattr(mode, "kernel_launched", None)
        if launched is not None:
            launched()
