"""One segment over all its runs: what the plan says of it, and what earlier runs taught."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from planner.errors import ReplayError
from planner.replay.custom_ops import NO_RULES, OpRules
from planner.replay.program import Program
from planner.replay.replaying import ReplayCount

if TYPE_CHECKING:
    from planner.replay.audit import Finding


Namer = Callable[[str, str], str]
"""Returns the next op's address; given the address that it had before, or "" for a new op."""

Check = Literal["none", "originals", "checksums", "checksums of the first run"]
"""How replays are checked: against the originals when the segment closes (see `audit`), or against
checksums in backward (see `digest`), which may end with the first run that is remembered; then a
difference is an error, since nobody reads `findings`."""

LIMIT = 32
"""Recorded variants kept per segment."""

MOST_ANEW = 2
"""How often a segment is recorded from the start again, see `Recipe.record_anew`."""


class Tables(NamedTuple):
    """What the C++ core follows a program by: its tables, or None and why there are none.

    `numbering` tells which values the numbers in them stand for; `handed_over` holds, for each run
    in a row that left the recorded path, at which op.
    """

    program: Program
    template: Any
    numbering: Any
    reason: str
    handed_over: list[int]


@dataclass(slots=True, eq=False)
class Recipe:
    """One segment, over all its runs.

    Attributes:
        name: label for errors.
        count: counts replayed ops; one for all segments of an applied plan.
        keeps: whether the plan keeps output `number` of the op at an address.
        keep_all: record only, drop nothing.
        cut_depths: depth by address of the ops before which the replay is cut.
        address: returns a function that names ops in the order in which they are recorded, or None
            when neither the plan nor a check names ops.
        check: how replays are checked.
        rules: which ops are replayed, beyond what their schemas tell.
        programs: recorded variants (shapes, modes, branches), the last used first.
        findings: differences that checks found.
        tables: what the C++ core made of `programs`.
        record_anew: whether the next run is recorded from the start: a program that was recorded
            from the middle of a run on (`Program.resumed`) fitted again right after.
        times_anew: how often that was so.
        mode_left: whether a run left a dispatch mode inside the segment that was entered before it.
    """

    name: str
    count: ReplayCount = field(default_factory=ReplayCount)
    keeps: Callable[[str, int], bool] | None = None
    keep_all: bool = False
    cut_depths: Mapping[str, int] = field(default_factory=dict)
    address: Callable[[], Namer] | None = None
    check: Check = "none"
    rules: OpRules = NO_RULES
    programs: list[Program] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tables: list[Tables] = field(default_factory=list)
    record_anew: bool = False
    times_anew: int = 0
    mode_left: bool = False

    @property
    def checks_originals(self) -> bool:
        """Whether dropped tensors are kept until the segment closes, to compare replays."""
        return self.check == "originals"

    @property
    def checks_checksums(self) -> bool:
        """Whether dropped tensors leave a checksum."""
        return self.check in ("checksums", "checksums of the first run")

    def differs(self, finding: Finding) -> None:
        """Note a replay that differs from what was dropped.

        Raises:
            ReplayError: nobody reads notes.
        """
        if self.check == "checksums":
            self.findings.append(finding)
            return
        raise ReplayError(
            f"segment {self.name}: a replay of {finding.op} differs from the forward",
            numbers=f"at {finding.address}" if finding.address else "",
            cause="a kernel that is not deterministic, or that writes or draws undeclared",
            fix="make a plan with planner.plan(model, ...), which excludes such units by name",
            unit=self.name,
        )

    def leaves_mode(self) -> None:
        """Warn, once, that a run keeps what follows a dispatch mode's end."""
        if not self.mode_left:
            self.mode_left = True
            warnings.warn(
                f"segment {self.name}: a dispatch mode that was entered before the segment ends"
                " inside it: what autograd saves after that stays in memory, and the peak may be"
                " higher than planned",
                RuntimeWarning,
                stacklevel=3,
            )

    def learned(self, program: Program) -> None:
        """Put a program first among the variants."""
        if self.check == "checksums of the first run":
            self.check = "none"
        if not self.programs or self.programs[0] is not program:
            others = [p for p in self.programs if p is not program]
            self.programs[:] = [program, *others][:LIMIT]
            self.record_anew = False
        elif program.resumed and self.times_anew < MOST_ANEW:
            self.record_anew = True
            self.times_anew += 1
