"""Hypothesis strategies: small training steps and spans in them."""

from __future__ import annotations

from dataclasses import replace

from graphs import StepBuilder
from hypothesis import strategies as st

from planner.documents.profile import Profile
from planner.graph import Graph, Span


@st.composite
def steps(draw: st.DrawFn, most_ops: int = 9) -> tuple[StepBuilder, Profile]:
    """Steps with in-place ops, buffers, opaque ops, dead branches and nested units."""
    step = StepBuilder()
    current = [step.outside(draw(SIZES), c) for c in ("input", "parameter", "buffer")]
    saved: set[int] = set()  # storages that autograd holds: nobody may write them
    count = draw(st.integers(2, most_ops))
    with step.unit("", "Net"):
        while len(step.ops) < count:
            parts = draw(st.integers(1, 2))
            with step.unit(f"u{len(step.units)}"):
                for _ in range(parts):
                    with step.unit(f"u{len(step.units)}"):
                        for _ in range(draw(st.integers(0 if parts > 1 else 1, 2))):
                            _op(draw, step, current, saved)
    if draw(st.booleans()):
        step.hold(current[-1])
    profile = step.profile()
    return step, replace(profile, units=tuple(step.units))


SIZES = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])


def _op(draw: st.DrawFn, step: StepBuilder, current: list[int], saved: set[int]) -> None:
    reads = draw(st.lists(st.sampled_from(current), min_size=1, max_size=3, unique=True))
    free = [v for v in current if step.values[v].storage not in saved and _writable(step, v)]
    writes = draw(st.lists(st.sampled_from(free), max_size=1)) if free else []
    makes = draw(st.lists(SIZES, min_size=0 if writes else 1, max_size=2))
    saves = [v for v in reads if v not in writes and draw(st.booleans())]
    own = draw(st.booleans())
    out = step.op(
        "aten.relu.default" if own else "aten.addmm.default",
        reads,
        makes,
        writes=writes,
        saves=saves,
        # Outputs after the first exist for backward.
        saves_out=[*([0] if own else []), *range(1, len(makes))],
        replayable=draw(st.integers(0, 9)) > 0,
        live=draw(st.integers(0, 9)) > 0,
        time_ns=draw(st.integers(1, 99)),
    )
    packed = [*saves, *([out[0]] if own else []), *out[1 : len(makes)]]
    saved.update(step.values[v].storage for v in packed)
    current[:] = [v for v in current if v not in writes] + list(out)


def _writable(step: StepBuilder, value: int) -> bool:
    return step.categories[step.values[value].storage] != "parameter"


@st.composite
def span_sets(draw: st.DrawFn, graph: Graph) -> list[Span]:
    """Disjoint spans of a graph with kept values and nested cuts."""
    edges = draw(st.lists(st.sampled_from(graph.legal_positions), max_size=4, unique=True))
    edges.sort()
    spans = []
    for start, stop in zip(edges, edges[1:], strict=False):
        if draw(st.integers(0, 3)):
            spans.append(_span(draw, graph, start, stop))
    return spans


def _span(draw: st.DrawFn, graph: Graph, start: int, stop: int) -> Span:
    made = [v for op in range(start, stop) for v in graph.outputs(op)]
    made = [v for v in made if graph.made_inside(v, start, stop)]
    keep = draw(st.frozensets(st.sampled_from(made), max_size=3)) if made else frozenset()
    # Where somebody else keeps a value anyway, giving it up is waste, and how long that somebody
    # keeps it is not in a profile.
    keep |= {v for v in made if _packed_elsewhere(graph, v, start, stop)}
    cuts: list[tuple[int, int]] = []
    if stop - start > 1:
        positions = st.integers(start + 1, stop - 1)
        cut = st.tuples(positions, st.sampled_from([1, 2, 3, -1, -2]))
        cuts = draw(st.lists(cut, max_size=3, unique_by=lambda c: c[0]))
    return Span(start, stop, keep, tuple(sorted(cuts)))


def _packed_elsewhere(graph: Graph, value: int, start: int, stop: int) -> bool:
    return len(graph.packed_inside(value, start, stop)) < len(graph.saved_of(value))
