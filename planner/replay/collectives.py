"""Ops in which other processes take part. A replay never runs one: the others would not.

Like every op of a foreign namespace they are opaque, and what they make comes from outside.

WRITES ARRIVE LATER   their schemas do not say what they write, and a collective that was only
                  launched has not written yet when the op returns. So every tensor that one is
                  given, but for those that it calls inputs, counts as written, whatever its memory
                  shows. No version counter moves: what autograd had saved of it is found changed
                  in backward, without a plan, and so it must be with one.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.replay.trees import tensors_in

NAMESPACES = frozenset(
    {
        "_c10d_functional",
        "_c10d_functional_autograd",
        "c10d",
        "c10d_functional",
        "fsdp",
        "symm_mem",
    }
)


def is_collective(func: Any) -> bool:
    """Whether an op belongs to `torch.distributed`."""
    return getattr(func, "namespace", "") in NAMESPACES


def written_by_collective(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Tensors that an op writes if it is a collective, now or later."""
    if not is_collective(func):
        return []
    names = (argument.name for argument in func._schema.arguments)
    given = (*zip(names, args, strict=False), *kwargs.items())
    return list(tensors_in([value for name, value in given if not name.startswith("input")]))
