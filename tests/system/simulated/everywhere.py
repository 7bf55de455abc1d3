"""A pytest plugin: whatever a test makes without saying where is made on the simulated device."""

from __future__ import annotations

import torch

from simulated import start


def pytest_configure() -> None:
    """Start the device before any test is looked for."""
    start()
    torch.set_default_device("sim")
