"""Loads the model that `package.module:callable` or `path/file.py:callable` names."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.errors import InvalidModelError

if TYPE_CHECKING:
    from torch import nn

SHAPE_OF_A_NAME = "write package.module:callable or path/file.py:callable"


@dataclass(frozen=True, slots=True)
class Target:
    """What the named callable returned; `inputs` and `loss_fn` are None where it gave none."""

    model: nn.Module
    inputs: Any = None
    loss_fn: Callable[..., Any] | None = None

    def step_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments that `planner.plan`, `profile` and `verify` share."""
        return {"inputs": self.inputs, "loss_fn": self.loss_fn}


def load_target(name: str) -> Target:
    """Import and call what `name` says.

    Raises:
        InvalidModelError: nothing by that name, or it does not return a model.
    """
    source, colon, attribute = name.rpartition(":")
    if not colon or not source or not attribute:
        raise InvalidModelError(f"'{name}' does not name a model", fix=SHAPE_OF_A_NAME)
    found = _attribute(_module(source), attribute, name)
    return _target(_call(found, name), name)


def _module(source: str) -> ModuleType:
    try:
        return _from_file(Path(source)) if source.endswith(".py") else _from_package(source)
    except FileNotFoundError as error:
        raise InvalidModelError(
            f"the model file {source} does not exist",
            cause=f"looked in {Path.cwd()}",
            fix=SHAPE_OF_A_NAME,
        ) from error
    except InvalidModelError:
        raise
    except Exception as error:
        raise InvalidModelError(
            f"importing {source} failed",
            cause=f"{type(error).__name__}: {error}",
            fix=f"make `python -c 'import {Path(source).stem}'` work, or see the traceback with -v",
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(path)
    sys.path.insert(0, str(path.resolve().parent))  # the file may import its neighbours
    name = path.stem if path.stem not in sys.modules else f"_model_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidModelError(f"{path} is no Python file", fix=SHAPE_OF_A_NAME)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    spec.loader.exec_module(module)
    return module


def _from_package(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the user's own package in this folder
    return importlib.import_module(name)


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [n for n in vars(module) if n[0] != "_"])
        raise InvalidModelError(
            f"'{name}' names nothing: {module.__name__} has no '{attribute}'",
            cause=f"it has {', '.join(near)}" if near else "",
            fix=SHAPE_OF_A_NAME,
        ) from error


def _call(found: Any, name: str) -> Any:
    from torch import nn

    if isinstance(found, nn.Module):  # a model made at import
        return found
    if not callable(found):
        raise InvalidModelError(
            f"'{name}' is a {type(found).__name__}, not a callable", fix=SHAPE_OF_A_NAME
        )
    try:
        return found()
    except Exception as error:
        raise InvalidModelError(
            f"calling {name} failed",
            cause=f"{type(error).__name__}: {error}",
            fix="it must work without arguments; see the traceback with -v",
        ) from error


def _target(returned: Any, name: str) -> Target:
    from torch import nn

    parts = returned if isinstance(returned, tuple) else (returned,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InvalidModelError(
            f"'{name}' does not return a model",
            numbers=f"it returned {kinds}",
            fix="return a model, (model, inputs) or (model, inputs, loss_fn)",
        )
    return Target(*parts)
