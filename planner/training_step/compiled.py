"""Which parts of a model are compiled: the whole model, or units of it."""

from __future__ import annotations

import gc
import sys

from torch import nn

from planner.errors import InvalidModelError
from planner.replay.units import is_compiled

COMPILED = "compiled: its own hooks do not run, so no segment begins or ends in it"
"""The reason of an exclusion; a plan is for the model with just these units compiled."""


def compiled_units(model: nn.Module) -> tuple[str, ...]:
    """Return the names of a model's compiled units."""
    return tuple(name for name, module in model.named_modules() if is_compiled(module))


def check_not_compiled(model: nn.Module) -> None:
    """Check that a model is not compiled as a whole.

    Raises:
        InvalidModelError: it is.
    """
    if not is_compiled(model):
        return
    inner = getattr(model, "_orig_mod", model)
    raise InvalidModelError(
        f"a {type(inner).__name__} that is compiled as a whole cannot run under a plan",
        cause="its compiled code calls no hooks of its units, and decides by itself what it saves",
        fix="compile its blocks one by one (for block in model.blocks: block.compile()) and plan"
        " the model around them, plan it without compiling it, or let torch choose what is"
        " recomputed: torch._functorch.config.activation_memory_budget = 0.5",
    )


def has_compiled_wrapper(model: nn.Module) -> bool:
    """Whether `torch.compile` has made a wrapper of this model, which may have run already."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    holders = gc.get_referrers(model)
    return any(type(h) is dict and h.get("_orig_mod") is model for h in holders)
