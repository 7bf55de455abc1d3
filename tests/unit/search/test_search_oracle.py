"""On tiny chains the search is as good as trying every plan."""

from __future__ import annotations

from drawn import examples
from graphs import StepBuilder
from hypothesis import given
from hypothesis import strategies as st
from plan_oracle import all_plans, exhaustive

from planner.graph import Graph, simulate
from planner.search import floor, search

MIB = 1 << 20


@st.composite
def chain_graphs(draw: st.DrawFn) -> Graph:
    """Linears and activations of any width; Tanh saves what it makes, GELU what it reads."""
    step = StepBuilder()
    size = st.integers(1, 8).map(lambda n: n * MIB)
    x = step.outside(draw(size), "input")
    with step.unit("", "Sequential"):
        for index in range(draw(st.integers(2, 3))):
            weight, out = step.outside(MIB // 16), draw(size)
            time_ns = draw(st.integers(1, 9)) * 1_000_000
            with step.unit(f"{2 * index}", "Linear"):
                (h,) = step.op(
                    "aten.addmm.default", (x, weight), (out,), saves=(x,), time_ns=time_ns
                )
            with step.unit(f"{2 * index + 1}", "Activation"):
                if draw(st.booleans()):
                    (x,) = step.op("aten.tanh.default", (h,), (out,), saves_out=(0,))
                else:
                    (x,) = step.op("aten.gelu.default", (h,), (out,), saves=(h,))
        step.hold(x)
    return Graph.of(step.profile())


@given(chain_graphs(), st.floats(0, 1))
@examples(25)
def test_search_equals_exhaustive(graph: Graph, share: float) -> None:
    low, high = floor(graph)[1], graph.profile.plain_peak_bytes
    budget = low + int((high - low) * share)
    found = search(graph, budget)
    best = exhaustive(graph, budget)
    # Plans with cuts are not among the tried ones, so the search may do better.
    assert best is None or found.overhead_ns <= best[1]
    assert search(graph, budget, method="milp").overhead_ns == found.overhead_ns


@given(chain_graphs())
@examples(15)
def test_no_plan_is_below_the_floor(graph: Graph) -> None:
    assert floor(graph)[1] <= min(simulate(graph, spans).peak_bytes for spans in all_plans(graph))


@given(chain_graphs(), st.floats(0, 1))
@examples(25)
def test_optimal_means_that_nothing_tried_is_cheaper(graph: Graph, share: float) -> None:
    low, high = floor(graph)[1], graph.profile.plain_peak_bytes
    found = search(graph, low + int((high - low) * share))
    if found.status == "optimal" or found.gap is not None:
        best = exhaustive(graph, low + int((high - low) * share))
        least = found.overhead_ns * (1 - (found.gap or 0) - 1e-3)
        assert best is None or best[1] >= least
