"""`Progress`: what a measured search reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a measured search has come.

    Attributes:
        done: finished trials of the study, those of other processes included.
        total: trials wanted.
        best_ratio: least step time measured so far over that of the plan it began with.
        stopped: empty while it runs; then why it ended: `trials` (all are done), `timeout`,
            `interrupted`, `exhausted` (nothing is left to learn) or `nothing to search`.
        gain_ratio: at the end, how much shorter than under the seed the returned plan's step is, in
            a last comparison of its own; 0 when the seed is returned.
    """

    done: int
    total: int
    best_ratio: float
    stopped: str = ""
    gain_ratio: float = 0.0
