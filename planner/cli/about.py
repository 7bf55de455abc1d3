"""What `planner --version` tells: version, engine, where the package was loaded from."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import planner

_PACKAGES = (
    "torch",
    "networkx",
    "scipy",
    "optuna",
    "numpy",
    "msgspec",
    "transformers",
    "lightning",
    "accelerate",
)


def about(as_json: bool) -> str:
    """Return one line, or all facts as JSON; imports torch only where the engine may be native."""
    found = {"planner": planner.__version__, "engine": _engine(), "loaded_from": _folder()}
    if not as_json:
        return f"planner {found['planner']} (engine: {found['engine']}), {found['loaded_from']}"
    found |= {"python": platform.python_version(), "platform": platform.platform()}
    found |= {name: known for name in _PACKAGES if (known := _version(name))}
    return json.dumps(found, indent=2)


def _engine() -> str:
    if os.environ.get("PLANNER_ENGINE", "python") == "python":
        return "python"
    from planner.replay.native.build import engine

    return engine().name


def _folder() -> str:
    return str(Path(planner.__file__).parent)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
