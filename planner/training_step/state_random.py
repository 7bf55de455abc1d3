"""The states of the random generators that everyone shares. Used by `state`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from planner.training_step.state_tensors import quietly


def random_restorer() -> Callable[[], None]:
    """Return a function that puts back the present states of all global random generators.

    Covers torch's on the host and on every device of the accelerator in use, Python's, and NumPy's
    old global one.
    """
    with quietly():
        restorers = [
            partial(torch.set_rng_state, torch.get_rng_state()),
            partial(random.setstate, random.getstate()),
            *_accelerator_restorers(),
            *_numpy_restorers(),
        ]

    def restore() -> None:
        with quietly():
            for part in restorers:
                part()

    return restore


def _accelerator_restorers() -> Iterator[partial[Any]]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return
    module: Any = torch.get_device_module(accelerator)
    # Asking for the state would create a context on a device that nobody uses.
    in_use = not hasattr(module, "is_initialized") or module.is_initialized()
    if in_use and hasattr(module, "get_rng_state_all"):
        yield partial(module.set_rng_state_all, module.get_rng_state_all())
    elif in_use and hasattr(module, "get_rng_state"):  # one device only
        yield partial(module.set_rng_state, module.get_rng_state())


def _numpy_restorers() -> Iterator[partial[Any]]:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield partial(numpy.random.set_state, numpy.random.get_state())
