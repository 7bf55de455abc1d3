"""What becomes of a plan when the model that it is on is compiled: a warning, once.

The compiler traces hooks into its code. A plan's hooks do nothing there, so the compiled step runs
as without a plan, and nothing else would tell.
"""

from __future__ import annotations

import itertools
import warnings

from torch import nn

from planner.errors import PlannerError
from planner.training_step.compiled import has_compiled_wrapper

_numbers = itertools.count()
_warned: set[int] = set()


def next_number() -> int:
    """Return a number for the hooks of one plan on one model, which warn once."""
    return next(_numbers)


def traced(number: int, unit: str) -> None:
    """Warn that a hook of a plan is being compiled.

    Args:
        number: from `next_number`.
        unit: the hook's unit.
    """
    if number not in _warned:
        _warned.add(number)
        _warn(
            f"{f'unit {unit}' if unit else 'a model'} that a plan is on is being compiled: its"
            " compiled code runs as without the plan"
        )


# It runs, for real, while hooks are traced. This is what `torch.compiler.assume_constant_result`
# sets; the function itself would import the compiler, which takes longer than the rest of planner.
traced._dynamo_marked_constant = True  # type: ignore[attr-defined]


def warn_of_wrapper(model: nn.Module) -> None:
    """Warn where `torch.compile(model)` was called before the plan came."""
    if has_compiled_wrapper(model):
        _warn(
            f"torch.compile was called with this {type(model).__name__}: what it returned runs as"
            " without the plan"
        )


def _warn(what: str) -> None:
    text = PlannerError(
        what,
        cause="compiled code calls no hooks, and decides by itself what it saves",
        fix="train the model itself, uncompiled; or compile its blocks one by one first, then plan"
        " and apply: for block in model.blocks: block.compile()",
    )
    warnings.warn(str(text), RuntimeWarning, stacklevel=3)
