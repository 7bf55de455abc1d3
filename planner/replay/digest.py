"""Checks replays without keeping originals: a dropped tensor leaves a checksum.

The replay is compared with it when backward unpacks the value, in backward's thread. Where there is
memory for originals, `audit` says more: which op differed first, and whether its kernel is
deterministic.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from planner.replay.audit import Finding
from planner.replay.exposure import plain_numpy
from planner.replay.flow import Arg, Key
from planner.replay.state import Placeholder, SegmentState
from planner.replay.traits import may_be_undefined

if TYPE_CHECKING:
    from planner.replay.recipe import Recipe

PIECE_BYTES = 2**22


class CheckedPlaceholder(Placeholder):
    """A placeholder with the checksum of what it stands for; differences go to the recipe."""

    __slots__ = ("digest", "recipe")

    def __init__(
        self, state: SegmentState, arg: Arg, key: Key, digest: int, recipe: Recipe
    ) -> None:
        super().__init__(state, arg, key)
        self.digest, self.recipe = digest, recipe

    def value(self) -> torch.Tensor:
        """Return what a replay made; report it to the recipe if it is not what was dropped."""
        found = self.state.value(self.arg)
        if digest(found) != self.digest:
            finding = self._finding(found)
            if finding is not None:
                self.recipe.differs(finding)
        return found

    def _finding(self, found: torch.Tensor) -> Finding | None:
        """What differs; None where the forward itself changed it later (see `collectives`)."""
        program = self.state.program
        now = self.state.open_run if program is None else program
        assert now is not None
        record = next(
            record
            for record in now.records
            if self.key in record.makes or any(self.key == new for _, new in record.writes)
        )
        dropped = any(pack.dropped and pack.arg.key == self.key for pack in now.packs)
        if not dropped or may_be_undefined(record.func, found):
            return None
        return Finding(self.state.name, str(record.func), record.address, True)


def digest(tensor: torch.Tensor) -> int:
    """Return a checksum of a tensor's bits, read in pieces through host memory."""
    found = 0
    with _disable_current_modes(), torch.no_grad():
        for piece in _pieces(tensor.detach().resolve_conj().resolve_neg()):
            host = piece.to("cpu").contiguous().reshape(-1).view(torch.uint8)
            found = zlib.crc32(plain_numpy(host).data, found)
    return found


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.nbytes <= PIECE_BYTES or tensor.dim() == 0:
        yield tensor
        return
    rows = max(1, tensor.size(0) * PIECE_BYTES // tensor.nbytes)
    for part in tensor.split(rows) if tensor.size(0) > 1 else (tensor[0],):
        yield from _pieces(part)
