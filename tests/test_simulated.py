"""On an accelerator: what a GPU does around its kernels, simulated (`simulated/device.cpp`).

A process has one accelerator for good, so each file of checks runs in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

CHECKS = sorted(Path(__file__).parent.glob("simulated/check_*.py"))
COMPILES = shutil.which("c++") is not None and cpp_extension.is_ninja_available()


@pytest.mark.skipif(not COMPILES, reason="needs a C++ compiler and ninja")
@pytest.mark.parametrize("checks", CHECKS, ids=[path.stem for path in CHECKS])
def test_on_a_simulated_device(checks: Path) -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-o",
            "python_files=*.py",
            str(checks),
        ],
        env={**os.environ, "SIMULATED_DEVICE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
