"""Which calls of ops cannot be replayed, and whether they wrote: what they make stays."""

from __future__ import annotations

from typing import Any

import torch

from planner.replay.custom_ops import OpRules
from planner.replay.traits import Traits
from planner.replay.trees import all_on_tape, tensors_in


def keeps_results(
    rules: OpRules, traits: Traits, types: Any, args: tuple[Any, ...], kwargs: Any
) -> bool:
    """Whether what this call makes must stay: a replay would not make the same, or might not."""
    return (
        traits.opaque
        or rules.keep_results_of(traits.name, traits.custom)
        or bool(types)
        or not all_on_tape(args, kwargs)
        or (traits.random and draws_little(rules.least_drawn_bytes, traits, args))
        or (
            traits.changes_argument is not None
            and len(args) > traits.changes_argument
            and args[traits.changes_argument] is not None
        )
    )


def draws_little(least_bytes: int, traits: Traits, args: tuple[Any, ...]) -> bool:
    """Whether what a random op on the CPU draws takes less than so many bytes.

    One that writes into its argument fills that; any other is taken to make a mask of bools.
    """
    given = [t for t in tensors_in(args) if t.device.type == "cpu"] if least_bytes else []
    drawn = sum(t.nbytes if traits.writes else t.numel() for t in given)
    return bool(given) and drawn < least_bytes


def same_bytes(storage: torch.UntypedStorage, old: torch.UntypedStorage) -> bool:
    """Whether two storages hold the same bytes."""
    if storage.nbytes() != old.nbytes():
        return False
    a = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    b = torch.empty(0, dtype=torch.uint8, device=old.device).set_(old)
    return torch.equal(a, b)
