"""The profile of one batch size from those of two others. Pure.

A storage's bytes are a + b * batch, exactly, as long as the step does the same ops; two profiles
give a and b for every storage. Times are taken to be linear too, which holds once kernels are
busy.
"""

from __future__ import annotations

from dataclasses import replace

from planner.documents.profile import Profile
from planner.graph.model import Graph


def alike(one: Profile, other: Profile) -> bool:
    """Return whether two profiles differ in nothing but sizes and times."""
    return _shape(one) == _shape(other)


def _shape(profile: Profile) -> tuple[object, ...]:
    return (
        profile.fingerprint,
        profile.units,
        profile.values,
        profile.saved,
        tuple((op.name, op.unit, op.phase, op.inputs, op.outputs) for op in profile.ops),
        tuple((s.category, s.birth, s.death, s.natural_death) for s in profile.storages),
    )


def scale(small: Profile, large: Profile, sizes: tuple[int, int], batch_size: int) -> Profile:
    """Return what the profile at a batch size would be.

    Args:
        small, large: profiles for which `alike` holds.
        sizes: their batch sizes, the smaller first.
        batch_size: the one that is wanted; the step's inputs stay those of `large`.
    """

    def linear(a: int, b: int) -> int:
        return max(0, a + (b - a) * (batch_size - sizes[0]) // (sizes[1] - sizes[0]))

    def time_at(a: int, b: int) -> int:
        if batch_size == sizes[0]:
            return a
        # What got faster with more samples did so by chance.
        time = a + (b - a) * (batch_size - sizes[0]) // (sizes[1] - sizes[0])
        return max(time, min(a, b), b if batch_size > sizes[1] else 0)

    storages = tuple(
        replace(b, bytes=linear(a.bytes, b.bytes))
        for a, b in zip(small.storages, large.storages, strict=True)
    )
    ops = tuple(
        replace(b, time_ns=time_at(a.time_ns, b.time_ns), flops=linear(a.flops, b.flops))
        for a, b in zip(small.ops, large.ops, strict=True)
    )
    scaled = replace(
        large,
        ops=ops,
        storages=storages,
        step_time_ns=time_at(small.step_time_ns, large.step_time_ns),
        forward_time_ns=time_at(small.forward_time_ns, large.forward_time_ns),
    )
    return replace(scaled, plain_peak_bytes=int(Graph(scaled).plain_live.max(initial=0)))
