"""`applied`: puts a plan on a model for the steps of a `with` block, and takes it off again.

Planning and verification run planned steps; all of them do it here. A plan that stays on a model
is a `Handle` (`planner.applier.apply`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from planner.applier.gates import install
from planner.applier.runtime import Runtime


@contextmanager
def applied(model: nn.Module, runtime: Runtime) -> Iterator[Runtime]:
    """Run the block with the runtime's plan on the model.

    The model is left as it was, however the block ends, and also where a hook cannot be installed.
    What the runtime recorded stays with it for the next time.

    Args:
        model: the model that the plan was made for.
        runtime: the plan at work; one without segments puts nothing on the model.
    """
    hooks = install(model, runtime) if runtime.plan.segments else []
    try:
        yield runtime
    finally:
        for hook in hooks:
            hook.remove()
