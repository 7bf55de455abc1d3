"""`search`: within the budget, cheaper with more room, the floor, pins, errors."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import pytest
from drawn import examples
from graph_draws import steps
from graphs import StepBuilder, chain, residual_chain, unet
from hypothesis import given
from hypothesis import strategies as st

from planner.documents import Exclusion, Pins
from planner.documents.profile import Profile
from planner.errors import InfeasibleBudgetError, PlannerError, UnknownUnitError
from planner.graph import Graph, Span, emit, simulate
from planner.search import SearchResult, floor, search
from planner.search.baselines import every_block, sqrt, uniform
from planner.search.chain.blocks import split

SIZE, WIDE = 1 << 16, 1 << 18


def tanh_chain(layers: int, size: int = 4 << 20) -> Profile:
    """Linear and Tanh, one saved activation a layer, kernels that take their time."""
    step = StepBuilder()
    x = step.outside(size, "input")
    with step.unit("", "Sequential"):
        for index in range(layers):
            weight = step.outside(size // 64)
            with step.unit(f"{2 * index}", "Linear"):
                reads = (x, weight)
                (h,) = step.op("aten.addmm.default", reads, (size,), saves=(x,), time_ns=9_000_000)
            with step.unit(f"{2 * index + 1}", "Tanh"):
                (x,) = step.op("aten.tanh.default", (h,), (size,), saves_out=(0,), time_ns=500_000)
        step.hold(x)
    return step.profile()


def called_twice(layers: int, size: int = 1 << 20) -> Profile:
    """A model called twice before one backward, as in contrastive learning."""
    step = StepBuilder()
    weights = [step.outside(size // 16) for _ in range(layers)]
    for _ in range(2):
        x = step.outside(size, "input")
        with step.unit("", "Sequential"):
            for index, weight in enumerate(weights):
                with step.unit(f"{index}", "Linear"):
                    reads = (x, weight)
                    (x,) = step.op(
                        "aten.addmm.default", reads, (size,), saves=(x,), time_ns=900_000
                    )
            step.hold(x)
    return step.profile()


GRAPHS = {
    "chain": Graph.of(chain(5, SIZE, WIDE)),
    "residual": Graph.of(residual_chain(5, SIZE, WIDE)),
    "unet": Graph.of(unet(3, SIZE, WIDE)),
    "tanh": Graph.of(tanh_chain(12)),
    "twice": Graph.of(called_twice(8)),
}
NAMES = st.sampled_from(sorted(GRAPHS))


def between(graph: Graph, share: float) -> int:
    """A budget between the floor and the plain peak."""
    low, high = floor(graph)[1], graph.profile.plain_peak_bytes
    return low + int((high - low) * share)


def check(graph: Graph, result: SearchResult, budget: int) -> None:
    """What the result says is what the simulator plays, within the budget."""
    played = simulate(graph, result.spans)
    assert played.peak_bytes == result.peak_bytes <= budget
    assert played.overhead_ns == result.overhead_ns
    assert result.floor_bytes <= result.peak_bytes
    assert result.status in ("optimal", "feasible", "empty")
    assert result.gap is None or 0 <= result.gap <= 1


@given(NAMES, st.floats(0, 1), st.floats(0, 1))
@examples(25)
def test_within_the_budget_and_never_dearer_with_more(name: str, one: float, two: float) -> None:
    graph = GRAPHS[name]
    tight, wide = sorted((between(graph, one), between(graph, two)))
    less, more = search(graph, tight), search(graph, wide)
    check(graph, less, tight)
    check(graph, more, wide)
    assert more.overhead_ns <= less.overhead_ns


@given(steps(), st.floats(0, 1))
@examples(30)
def test_any_step_can_be_planned(step: tuple[StepBuilder, Profile], share: float) -> None:
    graph = Graph.of(step[1])
    budget = between(graph, share)
    check(graph, search(graph, budget), budget)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_the_floor_is_reached_and_nothing_below(name: str) -> None:
    graph = GRAPHS[name]
    spans, low = floor(graph)
    assert simulate(graph, spans).peak_bytes == low < graph.profile.plain_peak_bytes
    assert search(graph, low).peak_bytes == low
    with pytest.raises(InfeasibleBudgetError) as caught:
        search(graph, low - 1)
    error = caught.value
    assert (error.budget_bytes, error.min_peak_bytes) == (low - 1, low)
    assert sum(size for _, size in error.holders) == low
    assert {"parameters", "gradients", "inputs"} <= {label for label, _ in error.holders}
    assert pickle.loads(pickle.dumps(error)).holders == error.holders


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_a_budget_that_the_plain_step_meets_needs_no_spans(name: str) -> None:
    graph = GRAPHS[name]
    result = search(graph, graph.profile.plain_peak_bytes)
    assert (result.spans, result.status, result.overhead_ns) == ((), "empty", 0)


@pytest.mark.parametrize("make", [chain, residual_chain])
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_milp_agrees_with_the_dynamic_program(
    make: Callable[[int, int, int], Profile], share: float
) -> None:
    graph = Graph.of(make(2, SIZE, WIDE))
    budget = between(graph, share)
    milp, dp = search(graph, budget, method="milp"), search(graph, budget, method="dp")
    assert milp.overhead_ns == dp.overhead_ns
    assert (milp.solver, dp.solver) == ("milp", "dp")


@pytest.mark.parametrize("name", ["chain", "residual", "tanh"])
def test_no_dearer_than_what_people_place_by_hand(name: str) -> None:
    graph = GRAPHS[name]
    names = {u.name.split(".norm")[0] for u in graph.profile.units if u.name.endswith(".norm")}
    hand = [uniform(graph, 3), uniform(graph, 6), sqrt(graph), every_block(graph, sorted(names))]
    for spans in hand:
        played = simulate(graph, spans)
        result = search(graph, played.peak_bytes)
        assert result.overhead_ns <= played.overhead_ns
    assert floor(graph)[1] <= min(simulate(graph, spans).peak_bytes for spans in hand)


def test_a_long_chain_needs_few_activations() -> None:
    profile = tanh_chain(200)
    graph = Graph.of(profile)
    activation = 4 << 20
    baseline = sum(s.bytes for s in profile.storages if s.birth < 0 or s.category == "gradient")
    for activations, forwards in ((34, 1), (26, 2), (18, 3)):
        result = search(graph, baseline + activations * activation)
        assert simulate(graph, result.spans).replayed_ops <= forwards * 400


def test_room_is_used_when_a_model_is_called_twice() -> None:
    graph = GRAPHS["twice"]
    peaks = {search(graph, between(graph, share / 20)).peak_bytes for share in range(21)}
    assert len(peaks) >= 5  # both calls free what a plan gives up


def test_equal_blocks_are_found_once() -> None:
    blocks = split(Graph.of(residual_chain(9, SIZE, WIDE)))
    assert len(blocks) == len(blocks.kinds) == len(blocks.edges) - 1
    assert len(set(blocks.kinds)) < len(blocks) / 2
    assert blocks.kinds[4] == blocks.kinds[5]


def test_a_step_without_module_calls_is_left_alone() -> None:
    step = StepBuilder()
    step.op("aten.mul.Tensor", (step.outside(8, "input"),), (8,))
    graph = Graph.of(step.profile())
    peak = graph.profile.plain_peak_bytes
    assert search(graph, peak).spans == floor(graph)[0] == ()
    with pytest.raises(InfeasibleBudgetError):
        search(graph, peak - 1)


def test_a_long_model_is_planned_in_seconds() -> None:
    began = time.process_time()
    graph = Graph.of(residual_chain(96, SIZE, WIDE))
    search(graph, graph.profile.plain_peak_bytes // 2)
    assert time.process_time() - began < 10


def test_the_same_question_has_the_same_answer() -> None:
    first, again = (Graph.of(residual_chain(4, SIZE, WIDE)) for _ in range(2))
    budget = between(first, 0.4)
    search(again, between(again, 0.1))  # what was asked before does not matter
    assert search(first, budget) == search(again, budget)


def test_spans_can_be_written_as_segments() -> None:
    graph = GRAPHS["residual"]
    result = search(graph, between(graph, 0.3))
    segments = emit(graph, result.spans)
    assert len(segments) == len(result.spans) > 0
    assert all(segment.replayed_ops for segment in segments)


def test_pinned_to_save_stays() -> None:
    graph = GRAPHS["chain"]
    pins = Pins(save=("blocks.[0-3]*",))
    low = floor(graph, pins=pins)[1]
    assert floor(graph)[1] < low < graph.profile.plain_peak_bytes
    result = search(graph, low, pins=pins)
    made = dropped_makers(graph, result)
    inside = [u for u in graph.profile.units if u.name.startswith("blocks.") and "4" not in u.name]
    assert made
    assert not any(u.enter <= op < u.exit for op in made for u in inside)


def test_pinned_to_recompute_goes_even_when_there_is_room() -> None:
    graph = GRAPHS["chain"]
    pins = Pins(recompute=("blocks.2", "*.act"))
    result = search(graph, 1 << 40, pins=pins)
    acts = {u.enter for u in graph.profile.units if u.name.endswith(".act")}
    block = next(u for u in graph.profile.units if u.name == "blocks.2")
    made = dropped_makers(graph, result)
    assert acts <= made and set(range(block.enter, block.exit - 1)) <= made
    # More may go along where one longer span is cheaper than several short ones.
    units = [u for u in graph.profile.units if u.name == "blocks.2" or u.name.endswith(".act")]
    by_hand = [
        Span(u.enter, u.exit, frozenset())
        for u in sorted(units, key=lambda u: u.enter)
        if u is block or not block.enter <= u.enter < block.exit
    ]
    assert result.overhead_ns <= simulate(graph, by_hand).overhead_ns
    assert result.overhead_ns > 0 and result.status != "empty"


def test_everything_can_be_pinned_to_recompute() -> None:
    graph = GRAPHS["tanh"]
    pins = Pins(recompute=(".",))
    saved = {t.value for t in graph.profile.saved}
    gone = dropped_makers(graph, search(graph, 1 << 40, pins=pins))
    assert gone == {graph.profile.values[v].op for v in saved} - {-1, graph.forward_stop - 1}
    assert floor(graph, pins=pins)[1] < 0.6 * graph.profile.plain_peak_bytes


def test_the_innermost_pin_decides() -> None:
    graph = GRAPHS["chain"]
    pins = Pins(recompute=("blocks.2",), save=("blocks.2.act",))
    act = next(u for u in graph.profile.units if u.name == "blocks.2.act")
    made = dropped_makers(graph, search(graph, 1 << 40, pins=pins))
    assert made and act.enter not in made


def test_excluded_units_never_run_again() -> None:
    graph = GRAPHS["residual"]
    out = (Exclusion("blocks.1.up", "compiled"), Exclusion("blocks.3", "opaque"))
    low = floor(graph, exclusions=out)[1]
    result = search(graph, low, exclusions=out)
    barred = {u.enter for u in graph.profile.units if u.name in ("blocks.1.up", "blocks.3.up")}
    assert dropped_makers(graph, result).isdisjoint(barred)
    assert floor(graph)[1] < low < graph.profile.plain_peak_bytes


def dropped_makers(graph: Graph, result: SearchResult) -> set[int]:
    """Ops whose saved values are given up."""
    return {
        op
        for span in result.spans
        for op in range(span.start, span.stop)
        for value in graph.outputs(op)
        if graph.packed_inside(value, span.start, span.stop) and value not in span.keep
    }


def test_unknown_units_are_named_with_close_ones() -> None:
    with pytest.raises(UnknownUnitError) as caught:
        search(GRAPHS["chain"], 1 << 40, pins=Pins(save=("block.2.act",)))
    assert caught.value.name == "block.2.act"
    assert "blocks.2.act" in caught.value.near


@pytest.mark.parametrize(
    ("pins", "out"),
    [
        (Pins(save=("blocks.*",), recompute=("blocks.1",)), ()),
        (Pins(recompute=("blocks.1",)), (Exclusion("blocks.1", "compiled"),)),
    ],
)
def test_contradictions_are_errors(pins: Pins, out: tuple[Exclusion, ...]) -> None:
    with pytest.raises(PlannerError, match=r"blocks\.1"):
        search(GRAPHS["chain"], 1 << 40, pins=pins, exclusions=out)


def test_unknown_methods_are_errors() -> None:
    with pytest.raises(PlannerError, match="auto, dp, milp"):
        search(GRAPHS["chain"], 1 << 40, method="magic")
