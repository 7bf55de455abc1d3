"""Builds and loads the C++ core: once per torch version, safe when several processes begin at once.

`PLANNER_ENGINE` chooses: `python` never loads it, `native` and `auto` build it at first use where
there is a compiler. Where it cannot be used, the Python path runs, which gives the same results.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple

import torch
from tqdm import tqdm

TESTED = ("2.13.0", "2.14.1")
"""Releases of torch on which the core passes the tests; its C++ interfaces promise nothing."""

KEY = "Fake"
"""The dispatch key of the core's fallback, below autograd and below Python's modes. Torch reserves
it for fake tensors in C++, and no tested release registers anything there."""

DEFAULT: Literal["auto", "native", "python"] = "python"
_NAME = "planner_native"
_SOURCES = ("binding.cpp", "run.h", "state.h", "values.h", "template.h")


class Engine(NamedTuple):
    """Which engine follows and replays, and why not the other one.

    Attributes:
        name: `native` or `python`.
        reason: why it is `python`, "" if it is not.
        module: the loaded core.
    """

    name: Literal["native", "python"]
    reason: str
    module: ModuleType | None


@cache
def engine() -> Engine:
    """Return this process's engine; builds the core if it is to be used and was never built."""
    choice = os.environ.get("PLANNER_ENGINE", "") or DEFAULT
    if choice == "python":
        return Engine("python", "PLANNER_ENGINE is `python`, or not set", None)
    reason = _obstacle()
    if not reason:
        try:
            return Engine("native", "", _load())
        except (ImportError, OSError, RuntimeError) as error:
            reason = f"it could not be built or loaded: {str(error).splitlines()[0]}"
    warnings.warn(f"planner runs its Python engine, not the native one: {reason}", stacklevel=2)
    return Engine("python", reason, None)


def _obstacle() -> str:
    release = torch.__version__.split("+", maxsplit=1)[0]
    if release not in TESTED:
        return f"it was not tested on torch {release}"
    if sys.platform != "linux":
        return f"it was not tested on {sys.platform}"
    if torch._C._dispatch_get_registrations_for_dispatch_key(KEY):
        return f"something else uses torch's dispatch key {KEY}"
    return ""


def _load() -> ModuleType:
    folder = _folder()
    library = folder / f"{_NAME}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not library.exists():  # else another process built it meanwhile
                return _build(library)
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
    spec = importlib.util.spec_from_file_location(_NAME, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _folder() -> Path:
    """Where the built core is kept: another one for each torch, Python and version of the core."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((here / name).read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    tag = f"torch-{torch.__version__}-{sysconfig.get_config_var('SOABI')}-{digest.hexdigest()[:12]}"
    return Path(home) / "segment-planner" / "native" / tag


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock that goes with the process, so that none is left behind."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(library: Path) -> ModuleType:
    """Compile in a folder of this process, and put the result in its place whole."""
    from torch.utils import cpp_extension

    here = Path(__file__).parent
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        copies = [shutil.copy(here / name, work) for name in _SOURCES]
        with tqdm(total=1, desc="building planner's native engine, once", disable=None) as bar:
            module: ModuleType = cpp_extension.load(
                _NAME, copies[:1], extra_cflags=["-O2", "-fvisibility=hidden"], build_directory=work
            )
            bar.update()
        shutil.copy(Path(work) / library.name, f"{library}.new")
    os.replace(f"{library}.new", library)
    return module
