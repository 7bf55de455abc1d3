"""The user's pins `never`: ops that no replay may run, whatever else speaks for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from planner.documents import Profile
from planner.errors import InvalidInputsError


def never_replaying(profile: Profile, never: Sequence[str]) -> Profile:
    """Return the profile with the results of some ops as values that come from outside.

    Args:
        profile: of a step.
        never: names of ops, as ``lib::op``.

    Raises:
        InvalidInputsError: the step's forward calls no op of that name.
    """
    if not never:
        return profile
    names = [base_name(op.name) for op in profile.ops]
    called = {name for name, op in zip(names, profile.ops, strict=True) if op.phase != "backward"}
    for name in never:
        if name not in called:
            raise _unknown(name, called)
    stays = {i for i, op in enumerate(profile.ops) if op.replayable and names[i] in never}
    return replace(
        profile,
        ops=tuple(
            replace(op, inputs=(), outputs=(), replayable=False) if i in stays else op
            for i, op in enumerate(profile.ops)
        ),
        values=tuple(replace(v, op=-1) if v.op in stays else v for v in profile.values),
    )


def base_name(op: str) -> str:
    """Return the name of an op without its overload: ``lib::op`` for ``lib.op.default``."""
    return "::".join(op.split(".")[:2])


def _unknown(name: str, called: set[str]) -> InvalidInputsError:
    near = get_close_matches(name, called, 3)
    return InvalidInputsError(
        f"the forward calls no op of the name {name!r} that never=[...] could keep",
        numbers=f"{len(called)} ops are called" + (f", such as {', '.join(near)}" if near else ""),
        cause="an op is named by its library and its name, as in aten::mm",
        fix="name one that is called: planner.profile(model, ...).ops lists them",
    )
