"""`Graph`, and plans as segments: `resolve(emit(spans))` gives the spans again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn import examples
from graph_draws import span_sets, steps
from graphs import StepBuilder, chain, residual_chain, unet
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.documents.plan import Boundary, Cut, Segment
from planner.errors import StalePlanError
from planner.graph import Graph, IllegalSpanError, Span, emit, resolve, simulate
from planner.graph.packs import own_packs, saves_result


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph.of(residual_chain(3))


def test_positions(graph: Graph) -> None:
    profile = graph.profile
    assert graph.n_ops == len(profile.ops) == 33
    assert graph.forward_stop == 16
    assert graph.legal_positions == tuple(range(17))
    assert graph.root_calls == (0,)


def test_flow(graph: Graph) -> None:
    norm = graph.flow(0)
    assert len(norm.makes) == 3
    assert graph.outputs(0) == norm.makes == graph.profile.ops[0].outputs
    assert norm.writes == ()
    assert graph.flow(graph.forward_stop).reads == ()  # backward ops carry no flow


def test_in_place_flow() -> None:
    step = StepBuilder()
    x = step.outside(8, "input")
    with step.unit("", "Net"):
        (a,) = step.op("aten.mm.default", (x,), (8,))
        (b,) = step.op("aten.relu_.default", (), writes=(a,), saves_out=(0,))
        step.op("aten.mm.default", (b,), (8,), replayable=False)
    graph = Graph.of(replace(step.profile(), units=tuple(step.units)))
    assert graph.flow(1).writes == ((a, b),)
    assert graph.flow(1).reads == (a,)
    assert graph.flow(2).reads == ()
    assert (graph.overwritten_at(a), graph.overwritten_at(b)) == (1, -1)
    assert graph.made_inside(b, 0, 2)
    assert not graph.made_inside(b, 1, 2)  # its memory comes from outside
    assert graph.storage_of(a) == graph.storage_of(b)
    assert graph.storage_bytes(a) == 8


def test_an_op_that_writes_unknown_memory_has_no_flow() -> None:
    profile = chain(1)
    storages = list(profile.storages)
    made = profile.values[profile.ops[1].outputs[0]].storage
    storages[made] = replace(storages[made], birth=0)
    graph = Graph.of(replace(profile, storages=tuple(storages)))
    assert graph.flow(1).makes == ()


def test_saved(graph: Graph) -> None:
    by_value = [graph.saved_of(value) for value in range(len(graph.profile.values))]
    assert sum(map(len, by_value)) == len(graph.profile.saved)
    assert sum(graph.packs) == len(graph.profile.saved)


def test_networkx(graph: Graph) -> None:
    drawn = graph.networkx()
    reads = sum(len(op.inputs) + len(op.outputs) for op in graph.profile.ops)
    assert drawn.number_of_edges() == reads
    assert drawn.nodes["op", 1]["name"] == "aten.addmm.default"
    assert drawn.graph["units"][drawn.nodes["op", 1]["unit"]].name == "blocks.0.up"


# -- who packed what ------------------------------------------------------------------------------


def packed(producer: str, saves_out: tuple[int, ...], saves: bool) -> tuple[bool, ...]:
    """Ownership of the packs between two ops: the first one's, then the second one's."""
    step = StepBuilder()
    x = step.outside(8, "input")
    with step.unit("", "Net"):
        a = step.op(producer, (x,), (8, 8), saves_out=saves_out)[0]
        step.op("aten.mm.default", (a,), (8,), saves=(a,) if saves else ())
    profile = step.profile()
    return own_packs(profile.ops, profile.values, profile.saved)


def test_packs_of_results_and_of_inputs() -> None:
    assert packed("aten.relu.default", (0,), saves=False) == (True,)
    assert packed("aten.relu.default", (0,), saves=True) == (True, False)
    assert packed("aten.add.Tensor", (), saves=True) == (False,)
    assert packed("aten.native_layer_norm.default", (1,), saves=True) == (True, False)
    assert packed("aten.unheard_of.default", (1,), saves=False) == (True,)


def test_ops_that_save_their_result() -> None:
    names = ["relu.default", "relu_.default", "leaky_relu_.default", "sigmoid.out"]
    assert all(saves_result(f"aten.{name}") for name in names)
    assert not saves_result("aten.leaky_relu.default")
    assert not saves_result("aten.add.Tensor")


# -- plans ----------------------------------------------------------------------------------------


@given(st.data())
@examples(80)
def test_resolve_is_the_inverse_of_emit(data: st.DataObject) -> None:
    _, profile = data.draw(steps())
    graph = Graph.of(profile)
    spans = data.draw(span_sets(graph))
    try:
        segments = emit(graph, spans)
    except IllegalSpanError:
        assume(False)
    assert resolve(graph, segments) == tuple(spans)
    simulation = simulate(graph, spans)
    assert sum(s.recompute_ns for s in segments) == simulation.replay_ns
    assert sum(s.replayed_ops for s in segments) == simulation.replayed_ops
    assert sum(s.kept_bytes for s in segments) == simulation.kept_bytes


def test_segments_read_well(graph: Graph) -> None:
    norm, up = graph.outputs(0), graph.outputs(1)
    span = Span(0, 10, frozenset({norm[1], up[0]}), ((5, 1), (7, 2)))
    (segment,) = emit(graph, [span])
    assert segment == Segment(
        start=Boundary("blocks.0", 0, "enter"),
        end=Boundary("blocks.1", 0, "exit"),
        keep=("blocks.0.norm/native_layer_norm/0#1", "blocks.0.up/addmm/0"),
        cuts=(Cut("blocks.1.norm/native_layer_norm/0", 1), Cut("blocks.1.act/gelu/0", 2)),
        saved_bytes=2 * (64 + 8 + 8 + 256 + 256) + 64,
        kept_bytes=8 + 256,
        recompute_ns=segment.recompute_ns,
        replayed_ops=segment.replayed_ops,
    )


def test_boundaries_prefer_whole_units(graph: Graph) -> None:
    places = graph.places
    assert places.boundary(0, "enter") == Boundary("blocks.0", 0, "enter")
    assert places.boundary(5, "enter") == Boundary("blocks.1", 0, "enter")
    assert places.boundary(5, "exit") == Boundary("blocks.0", 0, "exit")
    # Position 4: `down` is left, and the block goes on by itself.
    assert places.boundary(4, "enter") == Boundary("blocks.0.down", 0, "exit")
    assert places.boundary(16, "exit") == Boundary("head", 0, "exit")


def test_boundaries_where_only_empty_calls_stand() -> None:
    step = StepBuilder()
    x = step.outside(8, "input")
    with step.unit("", "Net"):
        (a,) = step.op("aten.mm.default", (x,), (8,))
        with step.unit("identity"):
            pass
        step.op("aten.mm.default", (a,), (8,))
    places = Graph.of(replace(step.profile(), units=tuple(step.units))).places
    assert places.boundary(0, "enter") == Boundary("", 0, "enter")
    assert places.boundary(2, "exit") == Boundary("", 0, "exit")
    # A span that ends here closes where the next one opens, not after it.
    assert places.boundary(1, "exit") == places.boundary(1, "enter")


def test_later_calls_of_a_unit() -> None:
    step = StepBuilder()
    x = step.outside(8, "input")
    with step.unit("", "Net"):
        for _ in range(2):
            with step.unit("shared"):
                (x,) = step.op("aten.mm.default", (x,), (8,))
    graph = Graph.of(replace(step.profile(), units=tuple(step.units)))
    (segment,) = emit(graph, [Span(1, 2)])
    assert segment.start == Boundary("shared", 1, "enter")
    assert resolve(graph, [segment]) == (Span(1, 2),)


def test_a_unet_has_spans_over_its_skips() -> None:
    graph = Graph.of(unet())
    spans = [Span(0, graph.forward_stop, frozenset(), ((8, 1),))]
    assert resolve(graph, emit(graph, spans)) == tuple(spans)


STALE = [
    (Segment(Boundary("gone", 0, "enter"), Boundary("blocks.0", 0, "exit")), ("gone",)),
    (Segment(Boundary("blocks.0", 0, "enter"), Boundary("blocks.0", 3, "exit")), ("blocks.0",)),
    (
        Segment(Boundary("blocks.1", 0, "enter"), Boundary("blocks.0", 0, "exit")),
        ("blocks.1", "blocks.0"),
    ),
    (
        Segment(
            Boundary("blocks.0", 0, "enter"),
            Boundary("blocks.1", 0, "exit"),
            keep=("blocks.0.up/mm/0", "blocks.1.up/addmm/0", "blocks.0.act/gelu/0#x"),
            cuts=(Cut("./add.Tensor/0", 1),),
        ),
        ("blocks.0.up", "blocks.0.act", "."),
    ),
]


@pytest.mark.parametrize(("segment", "units"), STALE)
def test_stale_plans_name_the_units(graph: Graph, segment: Segment, units: tuple[str, ...]) -> None:
    with pytest.raises(StalePlanError) as caught:
        resolve(graph, [segment])
    assert caught.value.units == units
