"""The settings of torch's caching allocators that change how memory counts.

They are given by `PYTORCH_ALLOC_CONF` or `torch.cuda.memory._set_allocator_settings`, and torch
keeps what was said last. Used by `planner.memory.allocator`.
"""

from __future__ import annotations

import re

import torch

_ONE = re.compile(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,\s]*)")
_UNMODELLED = ("roundup_power2_divisions", "max_split_size_mb")


def settings_in(text: str) -> dict[str, str]:
    """Return settings by name.

    >>> settings_in("roundup_power2_divisions:[256:1,>:4], expandable_segments:True")
    {'roundup_power2_divisions': '[256:1,>:4]', 'expandable_segments': 'True'}
    """
    return dict(_ONE.findall(text))


def in_force() -> dict[str, str]:
    """Return the settings in force now."""
    return settings_in(torch._C._accelerator_getAllocatorSettings())


def splits_everything() -> bool:
    """Return whether what a tensor leaves of its memory is always split off, however little.

    Expandable segments do so, and CUDA's own pool, `backend:cudaMallocAsync`, has no segments.
    """
    found = in_force()
    expandable = found.get("expandable_segments") == "True"
    return expandable or found.get("backend", "native") != "native"


def remarks() -> tuple[str, ...]:
    """Return what the reader of a peak that is only predicted should know."""
    return tuple(
        f"the allocator's setting {name} changes what counts for a tensor, and is not modelled"
        for name in in_force()
        if name in _UNMODELLED
    )
