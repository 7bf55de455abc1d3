"""Starts the simulated device: `tests/test_simulated.py` runs this folder in its own process."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

from simulated import FOLDER, start

ASKED = FOLDER in os.environ
collect_ignore_glob = [] if ASKED else ["*.py"]
device = start() if ASKED else None


@pytest.fixture(autouse=True)
def from_the_start() -> Iterator[None]:
    """Begin every test with the same numbers, all memory there is, and nothing cached."""
    assert device is not None
    torch.manual_seed(0)
    device.set_capacity(2**36)
    gc.collect()
    torch.accelerator.empty_cache()
    yield
    device.set_capacity(2**36)
