"""Where a step comes from when the user gives none: a stored profile, or the model's own inputs.

Called by `planner.api` through `find_profile` and by `step.make_step` through `resolve_inputs`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from planner.documents import Profile
from planner.errors import PlannerError, ProfileNotFoundError

SEARCH_PATH_VARIABLE = "PLANNER_PROFILES"
_FOLDER = "profiles"
_BATCH = 2  # the smallest that batch normalisation trains on
_HEAD_BYTES = 4096  # a document names its kind and fingerprint in its first lines
_FINGERPRINT = re.compile(rb'"fingerprint"\s*:\s*"([^"]*)"')


def resolve_inputs(model: nn.Module) -> Any:
    """Return the example inputs that a model itself offers, on its device, for `make_step`.

    In order: Lightning's `example_input_array`; images of the size in timm's `pretrained_cfg` or
    `default_cfg`, or in the configuration of a transformers model that takes ``pixel_values``;
    transformers' `dummy_inputs`. Images come in a batch of 2, random but always the same.

    Raises:
        ProfileNotFoundError: it offers none.
    """
    for find in (_lightning_inputs, _timm_inputs, _image_model_inputs, _transformers_inputs):
        inputs = find(model)
        if isinstance(inputs, (torch.Tensor, tuple, list, Mapping)) and len(inputs):
            return _on_device_of(model, inputs)
    raise _no_inputs(model)


def find_profile(model_fingerprint: str) -> Profile | None:
    """Return the stored profile of the model with this fingerprint, or None.

    Looks in ``profiles/`` of the working folder, then in the folders that the environment variable
    PLANNER_PROFILES lists. The first folder with a match decides; of several there the one whose
    name is last counts, numbers in names compared as numbers.
    """
    for folder in _folders():
        for path in sorted(folder.glob("*.json"), key=_by_name, reverse=True):
            profile = _load(path) if _may_match(path, model_fingerprint) else None
            if profile is not None and profile.fingerprint == model_fingerprint:
                return profile
    return None


def _lightning_inputs(model: nn.Module) -> Any:
    return getattr(model, "example_input_array", None)


def _timm_inputs(model: nn.Module) -> Any:
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, name, None)
        size = config.get("input_size") if isinstance(config, Mapping) else None
        size = size if size is not None else getattr(config, "input_size", None)
        if size is not None:
            return (_noise(model, *size),)
    return None


def _image_model_inputs(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    size = getattr(config, "image_size", None)
    if getattr(model, "main_input_name", "") != "pixel_values" or not size:
        return None
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    return {"pixel_values": _noise(model, getattr(config, "num_channels", 3), height, width)}


def _transformers_inputs(model: nn.Module) -> Any:
    try:
        return getattr(model, "dummy_inputs", None)
    except Exception:  # a property that does not fit this architecture
        return None


def _noise(model: nn.Module, *shape: int) -> torch.Tensor:
    dtypes = [tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_BATCH, *shape, generator=generator).to(dtypes[0] if dtypes else None)


def _on_device_of(model: nn.Module, value: Any) -> Any:
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _on_device_of(model, item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return tuple(_on_device_of(model, item) for item in value)
    return value


def _no_inputs(model: nn.Module) -> ProfileNotFoundError:
    kind = type(model).__name__
    return ProfileNotFoundError(
        f"no inputs for {kind}, and no stored profile of it",
        f"looked in {', '.join(str(folder) for folder in _named_folders())}",
        "the model was not profiled, or changed since; it offers no example inputs of its own",
        "either profile it once, from a function build() that returns (model, inputs):\n"
        "      python scripts/profile_model.py path/file.py:build\n"
        "    or give inputs:\n"
        "      planner.plan(model, budget_mb=..., inputs=(x,))",
    )


def _named_folders() -> Iterator[Path]:
    yield Path(_FOLDER)
    listed = os.environ.get(SEARCH_PATH_VARIABLE, "")
    yield from (Path(name).expanduser() for name in listed.split(os.pathsep) if name)


def _folders() -> Iterator[Path]:
    return (folder for folder in _named_folders() if folder.is_dir())


def _by_name(path: Path) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", path.stem)
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]


def _may_match(path: Path, fingerprint: str) -> bool:
    """Tell from the first lines alone where they suffice; profiles can be long."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        found = _FINGERPRINT.search(head)
        if found is not None:
            return found[1] == fingerprint.encode()
        document = json.loads(path.read_bytes())
        return isinstance(document, dict) and document.get("fingerprint") == fingerprint
    except (OSError, ValueError):
        return False


def _load(path: Path) -> Profile | None:
    from planner import documents

    try:
        document = documents.load(path)
    except PlannerError:
        return None  # damaged, or of a version that is too new
    return document if isinstance(document, Profile) else None
