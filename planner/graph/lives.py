"""What a span changes in memory and time, as records: made by `effect`, added up by `simulate`."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.graph.model import Ints


@dataclass(frozen=True, slots=True)
class Moment:
    """The replay of one group.

    Attributes:
        at: position in backward at which it runs.
        highs: live bytes at each step over those at the group's start.
        top: the largest of them.
        net: live bytes after it over those at its start.
        releases: (step, storage) of sources that it has used; freed unless held otherwise.
    """

    at: int
    highs: Ints
    top: int
    net: int
    releases: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Life:
    """Bytes that the plain step does not have: live during ops birth..death.

    With `carry` they are live in the replays at position death + 1 too, until a moment there
    counts them out.
    """

    birth: int
    death: int
    bytes: int
    carry: bool = False


@dataclass(slots=True)
class Effect:
    """What one instance of a span does.

    Attributes:
        start, stop: the ops under the tape.
        dropped: by storage, how many of its packs are given up.
        moments: the replays that run, in order.
        lives: replayed values and copies, while they live across ops.
        closing: storages under CLOSING HOLD.
        unused: storages under SOURCE HOLD by a group that never runs.
        last_asked: op after which autograd asks for nothing that was given up.
        saved_bytes: what the plain step saves of values made inside.
        kept_bytes: what of the kept values stays in memory.
        replay_ns, tape_ns: added time.
        replayed_ops: number of ops run again.
    """

    start: int
    stop: int
    dropped: dict[int, int] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    closing: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    last_asked: int = -1
    saved_bytes: int = 0
    kept_bytes: int = 0
    replay_ns: int = 0
    tape_ns: int = 0
    replayed_ops: int = 0
