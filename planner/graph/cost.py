"""What a plan costs in time, beyond the kernels: the one place for these constants.

Used by the simulator. The kernels' own times are in the profile.
"""

from __future__ import annotations

REPLAY_OP_NS = 5_000
"""Python around one replayed op: it builds the arguments and calls the kernel below autograd."""

TAPE_OP_NS = 20_000
"""Python around one op in forward under a tape: comparing it with the recorded one, what autograd
packs of it, and its share of the view ops, which a profile does not list. Measured on one core as
the added time of a recorded GPT-2 block over its ops; a mode that does nothing costs 6 to 9 us."""

TAPE_SPAN_NS = 20_000
"""Opening and closing one tape: hooks, the mode's entry and exit, the check of the program."""


def replay_cost_ns(kernels_ns: int, ops: int) -> int:
    """Return the time to replay ops whose kernels take `kernels_ns` in all."""
    return kernels_ns + ops * REPLAY_OP_NS


def tape_cost_ns(ops: int) -> int:
    """Return the time that one instance of a span with so many ops adds to forward."""
    return ops * TAPE_OP_NS + TAPE_SPAN_NS
