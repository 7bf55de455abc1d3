"""Connects the C++ core with the Python path: the functions that it calls back."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from planner.replay import exposure, launches
from planner.replay.content import Sample
from planner.replay.native.build import engine
from planner.replay.replaying import ReplayCount
from planner.replay.run import kept
from planner.replay.sources import (
    FREED,
    Delivered,
    Source,
    checked_delivery,
    checked_source,
    checked_version,
)
from planner.replay.statistics import about_to_change
from planner.replay.surroundings import Surroundings, run_below
from planner.replay.tape import Tape, unpack
from planner.replay.traits import traits_of


@cache
def core() -> Any:
    """Return the loaded core, ready to run; None where the Python path runs instead."""
    module = engine().module
    if module is None:
        return None
    module.setup(
        {
            "replay": _replay,
            "bad_source": _bad_source,
            "bad_delivery": _bad_delivery,
            "bad_kept": checked_version,
            "unpack": unpack,
            "kept": kept,
            "ignored": _ignored,
            "hidden": about_to_change,
            "push_mode": torch._C._push_on_torch_dispatch_stack,
            "pop_mode": _pop_mode,
            "hand_over": _hand_over,
            "parameter": torch.nn.Parameter,
        }
    )
    _let_higher_order_operators_through()
    launches.listeners.append(_launched)
    exposure.listeners.append(_exposed)
    return module


def _let_higher_order_operators_through() -> None:
    """Operators that dispatch in Python know nothing of the core's key, and must not meet it."""
    key = torch._C._dispatch_key_parse("Fake")
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(key)


def _replay(opened: tuple[Surroundings, ReplayCount], placeholder: Any) -> None:
    surroundings, count = opened
    count.ops += run_below(surroundings, placeholder.make)


def _bad_source(
    segment: str, tensor: torch.Tensor | None, version: int, freed: bool, same_version: bool
) -> None:
    """Raise what the Python path raises for a source that is not as the forward left it."""
    if tensor is None:
        checked_source(segment, None)
        return
    changed = Sample(lambda _: 1, 0) if same_version else None
    found = tensor._version if same_version else version
    checked_source(segment, Source(tensor, FREED if freed else found, changed))


def _bad_delivery(segment: str, tensor: torch.Tensor, version: int) -> None:
    checked_delivery(segment, Delivered(tensor, version, Sample(lambda _: 1, 0)))


def _ignored(func: Any) -> bool:
    return traits_of(func).passthrough


def _hand_over(tape: Any) -> Tape:
    taking: Tape = tape.python
    return taking


def _pop_mode() -> None:
    torch._C._pop_torch_dispatch_stack(None)


def _exposed(tensor: torch.Tensor) -> None:
    tape = core().current()
    if tape is not None:
        tape.memory_exposed(tensor)


def _launched() -> None:
    tape = core().current()
    if tape is not None:
        tape.kernel_launched()
