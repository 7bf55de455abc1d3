"""The lower bound is below every plan, whatever the plan is like."""

from __future__ import annotations

from drawn import examples
from graph_draws import span_sets, steps
from graphs import StepBuilder, residual_chain
from hypothesis import given
from hypothesis import strategies as st

from planner.graph import Graph, IllegalSpanError, Span, simulate
from planner.search.chain.bound import LowerBound
from planner.search.pins import Wishes

SIZE, WIDE = 1 << 16, 1 << 18
TINY = 64


def bound_of(graph: Graph) -> LowerBound:
    edges = graph.legal_positions
    return LowerBound(graph, (edges[0], edges[-1]), Wishes())


def check(graph: Graph, bound: LowerBound, spans: list[Span]) -> None:
    try:
        played = simulate(graph, spans)
    except IllegalSpanError:
        return
    least = bound.least_overhead_ns(played.peak_bytes)
    assert least is None or least <= played.overhead_ns


@given(st.data())
@examples(80)
def test_no_plan_of_any_step_is_below(data: st.DataObject) -> None:
    graph = Graph.of(data.draw(steps())[1])
    check(graph, bound_of(graph), data.draw(span_sets(graph)))


CHAIN = Graph.of(residual_chain(3, SIZE, WIDE))
CHAIN_BOUND = bound_of(CHAIN)


@given(span_sets(CHAIN))
@examples(80)
def test_no_plan_of_a_residual_chain_is_below(spans: list[Span]) -> None:
    check(CHAIN, CHAIN_BOUND, spans)


def test_the_bound_counts_tapes_from_boundary_to_boundary() -> None:
    # Three units apart from each other, of three ops each, of which the middle one makes what can
    # be given up. One may stay, so two go: two tapes over three ops, one replayed op under each.
    step = StepBuilder()
    x = step.outside(TINY, "input")
    with step.unit("", "Net"):
        for number in range(7):
            with step.unit(f"{number}"):
                if number % 2:
                    (a,) = step.op("aten.mul.Tensor", (x,), (TINY,), time_ns=10_000)
                    (b,) = step.op("aten.exp.default", (a,), (WIDE,), time_ns=10_000)
                    (x,) = step.op("aten.addmm.default", (b,), (TINY,), saves=(b,))
                else:  # too long to lie under a tape for nothing
                    for _ in range(6):
                        (x,) = step.op("aten.addmm.default", (x,), (TINY,), saves=(x,))
        step.hold(x)
    graph = Graph.of(step.profile())
    units = [u for u in graph.profile.units if u.name in ("1", "3")]
    spans = [Span(u.enter, u.exit, frozenset(graph.outputs(u.enter))) for u in units]
    played = simulate(graph, spans)
    least = bound_of(graph).least_overhead_ns(played.peak_bytes)
    assert least is not None
    assert 0.999 * played.overhead_ns < least <= played.overhead_ns
