"""On an accelerator: what a GPU does around its kernels, simulated (`simulated/device.cpp`).

A process has one accelerator for good, so the checks run in a process of their own. So do tests of
the engine that name no device: there, the simulated one is torch's default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from simulated import FOLDER
from torch.utils import cpp_extension

HERE = Path(__file__).parent
ENGINE = HERE.parent / "engine"
COMPILES = shutil.which("c++") is not None and cpp_extension.is_ninja_available()

ELSEWHERE = {
    "test_engine_calls.py": "",
    "test_engine_ops.py": "not numpy and not sparse",
    "test_engine_tools.py": "",
    "test_layers.py": "not lstm and not gru and not cells and not packed and not sparse",
    "test_situations.py": "giving_up and not data_parallel and not shard and not gru",
}
"""Tests that hold on any device, but for what the simulated one cannot do: be seen by NumPy, fused
recurrent cells, sparse layouts, collectives. Situations count budgets as the CPU does."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not COMPILES, reason="needs a C++ compiler and ninja"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first of the processes builds the device, while the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "device"
    folder.mkdir(exist_ok=True)
    return folder


def run(folder: Path, *arguments: str) -> None:
    """Run pytest in a process whose accelerator is the simulated one."""
    path = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "-n0", *arguments],
        env={**os.environ, FOLDER: str(folder), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", sorted(p.name for p in (HERE / "simulated").glob("check_*.py")))
def test_on_a_simulated_device(name: str, folder: Path) -> None:
    run(folder, "-o", "python_files=check_*.py", str(HERE / "simulated" / name))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_holds_on_any_device(name: str, folder: Path) -> None:
    run(
        folder,
        "-p",
        "simulated.everywhere",
        "-k",
        ELSEWHERE[name],
        str(ENGINE / name),
    )
