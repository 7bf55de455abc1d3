"""Failure situations of activation checkpointing, each one taken from a public report.

`ALL` holds every situation of every theme module, in order. A new one is a function that builds
a `Setup`, decorated with `situation(source, ...)`, in the module of its theme.
"""

from __future__ import annotations

from types import ModuleType

from . import (
    autocast,
    buffers,
    caches,
    compiled,
    containers,
    context,
    distributed,
    experts,
    functions,
    higher_order,
    hooks,
    inplace,
    modes,
    randomness,
    recurrent,
    shapes,
    sharing,
    structured_io,
    surface,
)
from .situation import Situation

THEMES: tuple[ModuleType, ...] = (
    randomness,
    buffers,
    experts,
    structured_io,
    containers,
    modes,
    context,
    hooks,
    caches,
    sharing,
    recurrent,
    autocast,
    compiled,
    distributed,
    inplace,
    higher_order,
    functions,
    shapes,
    surface,
)


def _declared(theme: ModuleType) -> list[Situation]:
    return [value for value in vars(theme).values() if isinstance(value, Situation)]


ALL: tuple[Situation, ...] = tuple(found for theme in THEMES for found in _declared(theme))

__all__ = ["ALL", "Situation"]
