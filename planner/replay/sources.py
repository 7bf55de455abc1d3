"""Values that a replay reads, and the checks that they are still what the forward read.

A source comes from outside the segment or was kept inside it; a delivered value was replayed and
waits for backward, or for another replay. Code outside may write into either before it is read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from planner.errors import ReplayError
from planner.replay.content import Sample

OVERWRITTEN = -1
"""Version of a source whose memory was overwritten without an op: it cannot be used."""

FREED = -2
"""Version of a source whose memory was freed before the segment closed: whether it will hold the
same content again when backward reads it is not known."""


class Source(NamedTuple):
    """A held value that a replay reads, as the forward left it.

    `version` is None for a copy, which nobody else can write into.
    """

    tensor: torch.Tensor
    version: int | None
    sample: Sample | None


class Delivered(NamedTuple):
    """A value that a replay made, as the replay left it."""

    tensor: torch.Tensor
    version: int
    sample: Sample | None = None


def checked_source(segment: str, source: Source | None) -> torch.Tensor:
    """Return a source's tensor.

    Args:
        segment: the segment's label, for errors.

    Raises:
        ReplayError: the source is gone, or was modified since the forward read it.
    """
    if source is None:
        raise ReplayError(
            f"segment {segment}: a value that its replay needs is gone",
            cause="backward ran twice through a graph that was not kept",
            fix="pass retain_graph=True to the first backward",
            unit=segment,
        )
    tensor, version, sample = source
    if version == FREED or (tensor.numel() > 0 and not tensor.untyped_storage().nbytes()):
        raise _freed(segment, tensor)
    if version == OVERWRITTEN:
        what = "was overwritten during the forward"
        raise _unusable(segment, tensor, what, "", "code without an op (NumPy, a C library)")
    if version is not None and tensor._version != version:
        raise _unusable(
            segment,
            tensor,
            "was modified in place after the forward",
            f"version {tensor._version} found, version {version} expected",
            "code outside the segment (an in-place op, an optimizer step)",
        )
    if sample is not None and sample.read(tensor) != sample.value:
        raise _unusable(
            segment,
            tensor,
            "changed after the forward",
            f"version {tensor._version} then and now",
            "code that moves no version counter (`.data`, NumPy, a C library)",
        )
    return tensor


def checked_delivery(segment: str, delivered: Delivered) -> torch.Tensor:
    """Return the tensor of a replayed value.

    Raises:
        ReplayError: backward wrote into it.
    """
    tensor, version, sample = delivered
    found = version_of(tensor)
    if found == version and (sample is None or sample.read(tensor) == sample.value):
        return tensor
    raise ReplayError(
        f"segment {segment}: a tensor of shape {tuple(tensor.shape)} that backward needs was "
        "modified in place during backward",
        numbers=f"version {found} found, version {version} expected",
        cause="a backward function or a hook wrote into a tensor that autograd had saved",
        fix="clone the tensor before writing",
        unit=segment,
    )


def checked_version(tensor: torch.Tensor, version: int) -> torch.Tensor:
    """Return a tensor that stayed with autograd.

    Raises:
        ReplayError: it was modified in place since it was packed.
    """
    if tensor._version == version:
        return tensor
    raise ReplayError(
        f"a tensor of shape {tuple(tensor.shape)} that backward needs was modified in place",
        numbers=f"version {tensor._version} found, version {version} expected",
        cause="an in-place op wrote into a tensor that autograd had saved",
        fix="use the out-of-place op, or clone the tensor before writing",
    )


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version; those made in inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _freed(segment: str, tensor: torch.Tensor) -> ReplayError:
    return ReplayError(
        f"segment {segment}: the memory of a tensor of shape {tuple(tensor.shape)} that its replay "
        "reads was freed",
        cause="a sharding wrapper freed a gathered parameter before this backward",
        fix="let no segment reach across the edge of a wrapped unit, or exclude the unit from the "
        f"plan: planner.plan(..., save=[{segment!r}])",
        unit=segment,
    )


def _unusable(
    segment: str, tensor: torch.Tensor, what: str, numbers: str, writer: str
) -> ReplayError:
    return ReplayError(
        f"segment {segment}: a tensor of shape {tuple(tensor.shape)} that its replay reads {what}",
        numbers=numbers,
        cause=f"{writer} wrote into it",
        fix="write into it after the backward, or exclude the unit from the plan: "
        f"planner.plan(..., save=[{segment!r}])",
        unit=segment,
    )
