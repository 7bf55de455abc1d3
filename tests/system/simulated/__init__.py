"""An accelerator for tests, named `sim`: what a GPU does around its kernels, on the CPU.

`start()` builds `device.cpp` and makes it the process's accelerator, for good: use it in a process
of its own.
"""

from __future__ import annotations

import os
import tempfile
import types
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("device.cpp")


FOLDER = "SIMULATED_DEVICE"
"""Environment variable: an existing folder in which to build, once for all that name it."""


@cache
def build() -> Any:
    """Compile the device where that was not done before, and load it."""
    folder = os.environ.get(FOLDER) or tempfile.mkdtemp(prefix="simulated-device-")
    return cpp_extension.load(
        name="simulated_device",
        sources=[str(SOURCE)],
        extra_cflags=["-O1"],
        build_directory=folder,
    )


def start() -> Any:
    """Make the simulated device this process's accelerator; return its C++ module."""
    built = build()
    torch.utils.rename_privateuse1_backend("sim")
    torch._register_device_module("sim", _module(built))
    torch.utils.generate_methods_for_privateuse1_backend()
    return built


def _module(built: Any) -> types.ModuleType:
    """Return `torch.sim`, with what torch asks of a device's module."""
    module: Any = types.ModuleType("torch.sim")
    generators = tuple(built.default_generator(i) for i in range(built.devices))

    def at(device: Any) -> int:
        index = torch.device(device).index
        return torch.accelerator.current_device_index() if index is None else index

    def seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    module.default_generators = generators
    module.device_count = lambda: built.devices
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.current_device = torch.accelerator.current_device_index
    module.manual_seed_all = seed_all
    module.get_rng_state = lambda device="sim": generators[at(device)].get_state()
    module.set_rng_state = lambda state, device="sim": generators[at(device)].set_state(state)
    module.get_rng_state_all = lambda: [g.get_state() for g in generators]
    module.set_rng_state_all = lambda states: [
        g.set_state(s) for g, s in zip(generators, states, strict=True)
    ]
    module.device = lambda device: torch.accelerator.device_index(at(device))
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16, torch.float32]
    return module
