"""What a plan costs in time, beyond the kernels: the one place for these constants.

Used by the simulator. The kernels' own times are in the profile.
"""

from __future__ import annotations

REPLAY_OP_NS = 5_000
"""Python around one replayed op: it builds the arguments and calls the kernel below autograd."""

TAPE_OP_NS = 35_000
"""Python around one op in forward under a tape: comparing it with the recorded one, what autograd
packs of it and unpacks later, and its share of the view ops, which a profile does not list.
A loop over one small op shows 10 to 20 us; between the kernels of a real model, where this code has
left the processor's caches, seven small models (GPT-2, Llama, BERT, T5, ViT, ResNet, a U-Net; one
core, PyTorch 2.13) fit 35 us an op and 0.2 ms a span."""

TAPE_SPAN_NS = 200_000
"""Opening and closing one tape: hooks, the mode's entry and exit, the check of the program."""


def replay_cost_ns(kernels_ns: int, ops: int) -> int:
    """Return the time to replay ops whose kernels take `kernels_ns` in all."""
    return kernels_ns + ops * REPLAY_OP_NS


def tape_cost_ns(ops: int) -> int:
    """Return the time that one instance of a span with so many ops adds to forward."""
    return ops * TAPE_OP_NS + TAPE_SPAN_NS
