"""Replays a segment while its originals are still there, and compares bit for bit.

Run when a plan is made, one segment at a time, within the memory of one segment. A replay that
differs from the original but equals a second replay is wrong; one that also differs from a second
replay comes from a kernel that is not deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from planner.replay.flow import Arg, Key
from planner.replay.program import Program
from planner.replay.replaying import replay_group
from planner.replay.slicing import slice_segment
from planner.replay.state import SegmentState
from planner.replay.surroundings import run_below
from planner.replay.traits import may_be_undefined
from planner.replay.views import rebuild


class Original(NamedTuple):
    """A dropped tensor, kept for comparison with its replay."""

    arg: Arg
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Finding:
    """A replay that differs from its original.

    Attributes:
        segment: label of the segment.
        op: name of the first differing op.
        address: its address, `unit/op/ordinal`, or "" when ops were not named.
        deterministic: whether two replays agree with each other.
    """

    segment: str
    op: str
    address: str
    deterministic: bool


def audit(state: SegmentState, program: Program, originals: dict[Key, Original]) -> Finding | None:
    """Replay everything that a segment drops and compare; returns the first difference."""
    return run_below(state.surroundings, _compare, state, program, originals)


def _compare(
    state: SegmentState, program: Program, originals: dict[Key, Original]
) -> Finding | None:
    maker = {
        key: number
        for number, record in enumerate(program.records)
        for key in (*record.makes, *(new for _, new in record.writes))
    }
    first = _replay(state, program)
    wrong = [
        key
        for key, (arg, tensor) in originals.items()
        if not same_bits(rebuild(first[key], arg), tensor)
        and not may_be_undefined(program.records[maker[key]].func, tensor)
    ]
    if not wrong:
        return None
    second = _replay(state, program)
    deterministic = all(same_bits(first[key], second[key]) for key in wrong)
    record = program.records[min(maker[key] for key in wrong)]
    return Finding(state.name, str(record.func), record.address, deterministic)


def _replay(state: SegmentState, program: Program) -> dict[Key, torch.Tensor]:
    held = frozenset(program.sources)
    flow = [record.flow_op() for record in program.records]
    slices = slice_segment(flow, program.dropped, held)
    env = {key: state.checked_source(key) for key in slices.sources}
    for group in slices.groups:
        replay_group(group, program.records, env, state.step_values, state.count)
    return env


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits (NaNs and signed zeros told apart)."""
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    if a.is_conj() or b.is_conj() or a.is_neg() or b.is_neg():
        a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(flat[0], flat[1])
