"""What the plan wants of a segment, and what earlier runs of it taught."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.errors import ReplayError
from planner.replay.program import Program

if TYPE_CHECKING:
    from planner.replay.audit import Finding


Namer = Callable[[str, str], str]
"""Gives the next op its address; told the address that it had before, or "" for a new op."""


class Recipe:
    """One segment, over all its runs.

    Attributes:
        name: label for errors.
        address: returns a function that names ops in the order in which they are recorded, or None
            when the plan names no ops.
        keeps: tells whether the plan keeps output `number` of the op at an address.
        keep_all: record only, give nothing up.
        cut_depths: depth by address of the ops before which the replay is cut.
        programs: recorded variants (shapes, modes, branches), the last used first.
        audits: whether each run is audited when it closes (see `audit`).
        digests: whether what is given up leaves a checksum for its replay (see `digest`).
        only_first: whether checksums end with the first run that is remembered, and a difference is
            an error, since nobody looks at `findings`.
        findings: what audits and checksums found.
        replayed: counts replayed ops; one counter for all segments of an applied plan.
    """

    LIMIT = 8  # recorded variants kept per segment

    def __init__(self, name: str, replayed: list[int] | None = None) -> None:
        self.name = name
        self.address: Callable[[], Namer] | None = None
        self.keeps: Callable[[str, int], bool] | None = None
        self.keep_all = False
        self.cut_depths: dict[str, int] = {}
        self.audits = self.digests = self.only_first = False
        self.findings: list[Finding] = []
        self.programs: list[Program] = []
        self.replayed = replayed if replayed is not None else [0]

    def differs(self, finding: Finding) -> None:
        """Take note of a replay that is not what was given up.

        Raises:
            ReplayError: nobody would look at a note.
        """
        if not self.only_first:
            self.findings.append(finding)
            return
        raise ReplayError(
            f"segment {self.name}: a replay of {finding.op} gives other numbers than the forward",
            numbers=f"at {finding.address}" if finding.address else "",
            cause="a kernel that does not repeat itself, or that writes or draws out of sight",
            fix="make a plan with planner.plan(model, ...), which leaves such units out by name",
            unit=self.name,
        )

    def learned(self, program: Program) -> None:
        """Put a program first among the variants."""
        self.digests = self.digests and not self.only_first
        if not self.programs or self.programs[0] is not program:
            others = [p for p in self.programs if p is not program]
            self.programs[:] = [program, *others][: self.LIMIT]
