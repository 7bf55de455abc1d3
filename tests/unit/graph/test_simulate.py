"""The simulator against a machine that runs the step event by event, and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn import examples
from graph_draws import span_sets, steps
from graph_oracle import Machine
from graphs import StepBuilder, chain, residual_chain, unet
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.graph import Graph, IllegalSpanError, Span, simulate
from planner.graph.cost import REPLAY_OP_NS, TAPE_OP_NS, TAPE_SPAN_NS


@given(st.data())
@examples(120)
def test_equals_the_machine(data: st.DataObject) -> None:
    step, profile = data.draw(steps())
    graph = Graph.of(profile)
    spans = data.draw(span_sets(graph))
    try:
        simulation = simulate(graph, spans, detail=True)
    except IllegalSpanError:
        assume(False)
    machine = Machine(step, spans).run()
    assert simulation.timeline == tuple(machine.timeline)
    assert simulation.peak_bytes == machine.peak == max(machine.timeline)
    assert simulation.timeline[simulation.peak_op] == machine.peak
    assert simulation.replayed_ops == machine.replayed
    assert sum(size for _, size in simulation.holders) == machine.peak


def test_no_spans_play_the_plain_step() -> None:
    for profile in (chain(), residual_chain(), unet()):
        graph = Graph.of(profile)
        simulation = simulate(graph, [], detail=True)
        assert simulation.peak_bytes == profile.plain_peak_bytes
        assert simulation.timeline == tuple(graph.plain_live)
        assert (simulation.overhead_ns, simulation.replayed_ops, simulation.kept_bytes) == (0, 0, 0)


def two_ops() -> Graph:
    """One unit of two ops: x(8) -> h(100), saved by the second op -> y(4), held by the caller."""
    step = StepBuilder()
    x = step.outside(8, "input")
    with step.unit("", "Net"):
        with step.unit("block"):
            (h,) = step.op("aten.mm.default", (x,), (100,), time_ns=50)
            (y,) = step.op("aten.gelu.default", (h,), (4,), saves=(h,), time_ns=70)
        with step.unit("head"):
            (z,) = step.op("aten.mm.default", (y,), (2,), saves=(y,))
    step.hold(z)
    return Graph.of(replace(step.profile(), units=tuple(step.units)))


def test_by_hand() -> None:
    graph = two_ops()
    # Ops: mm, gelu, mm | mm', gelu', mm' | optimizer. Gradients of y (4) and of h (100).
    assert tuple(graph.plain_live) == (108, 112, 114, 118, 214, 210 - 100, 10)
    simulation = simulate(graph, [Span(0, 2)], detail=True)
    # h is there in ops 0 and 1, and from before op 4 on.
    assert simulation.timeline == (108, 112, 14, 18, 214, 110, 10)
    assert simulation.replayed_ops == 1
    assert simulation.replay_ns == 50 + REPLAY_OP_NS
    assert simulation.tape_ns == 2 * TAPE_OP_NS + TAPE_SPAN_NS
    assert simulation.overhead_ns == simulation.replay_ns + simulation.tape_ns
    assert (simulation.peak_bytes, simulation.peak_op) == (214, 4)
    # Both gradients and the output; h, brought back; x.
    assert simulation.holders == (("activation", 106), ("replay", 100), ("input", 8))


def test_keeping_everything_changes_nothing_but_the_tape() -> None:
    graph = two_ops()
    simulation = simulate(graph, [Span(0, 2, frozenset({1}))], detail=True)
    assert simulation.timeline == simulate(graph, [], detail=True).timeline
    assert (simulation.replay_ns, simulation.replayed_ops) == (0, 0)
    assert simulation.kept_bytes == 100


def test_a_block_end_saved_by_the_next_block_is_outside() -> None:
    graph = Graph.of(residual_chain(2))
    ends = [op for op in range(graph.n_ops) if graph.profile.ops[op].name == "aten.add.Tensor"]
    (value,) = graph.outputs(ends[0])
    assert graph.saved_of(value) != []
    assert graph.packed_inside(value, 0, ends[0] + 1) == []
    assert graph.packed_inside(value, 0, ends[0] + 2) == graph.saved_of(value)


def test_spans_of_blocks_lower_the_peak_and_cuts_lower_it_more() -> None:
    graph = Graph.of(residual_chain(8))
    block = [Span(5 * i, 5 * i + 5) for i in range(8)]
    peaks = [
        simulate(graph, spans).peak_bytes
        for spans in ([], block[:4], block, [Span(0, 40)], [Span(0, 40, cuts=((20, 1),))])
    ]
    plain, half, every, whole, cut = peaks
    assert every < half < plain
    assert cut < whole


def test_later_root_calls_have_the_span_too() -> None:
    step = StepBuilder()
    w = step.outside(8)
    for _ in range(2):
        x = step.outside(8, "input")
        with step.unit("", "Net"), step.unit("block"):
            (h,) = step.op("aten.mm.default", (x, w), (100,))
            step.op("aten.gelu.default", (h,), (4,), saves=(h,))
    with step.unit("", "Net"), step.unit("other"):
        step.op("aten.mm.default", (x, w), (100,))
    graph = Graph.of(replace(step.profile(), units=tuple(step.units)))
    assert graph.legal_positions == (0, 2)
    simulation = simulate(graph, [Span(0, 2)])
    assert simulation.replayed_ops == 2
    assert simulation.tape_ns == 2 * (2 * TAPE_OP_NS + TAPE_SPAN_NS)
    assert simulate(graph, [Span(0, 2, frozenset({2}))]).replayed_ops == 0


def overwriting(inside: bool) -> Graph:
    """A block reads a buffer; an op overwrites it, in the block or after it."""
    step = StepBuilder()
    x, buffer = step.outside(8, "input"), step.outside(16, "buffer")

    def overwrite() -> None:
        step.op("aten.add_.Tensor", (buffer,), writes=(buffer,), live=False)

    with step.unit("", "Net"):
        with step.unit("block"):
            (h,) = step.op("aten.mul.Tensor", (x, buffer), (100,))
            step.op("aten.gelu.default", (h,), (4,), saves=(h,))
            if inside:
                overwrite()
        with step.unit("after"):
            if not inside:
                overwrite()
    return Graph.of(replace(step.profile(), units=tuple(step.units)))


def test_a_source_overwritten_inside_is_copied() -> None:
    graph = overwriting(inside=True)
    plain = simulate(graph, [], detail=True).timeline
    line = simulate(graph, [Span(0, 3)], detail=True).timeline
    assert line[2] == plain[2] - 100 + 16


def test_a_source_overwritten_outside_is_illegal() -> None:
    graph = overwriting(inside=False)
    with pytest.raises(IllegalSpanError, match="op 2 has overwritten"):
        simulate(graph, [Span(0, 2)])
    assert issubclass(IllegalSpanError, ValueError)


@pytest.mark.parametrize(
    ("spans", "match"),
    [
        ([Span(0, 2), Span(0, 2)], "overlaps"),
        ([Span(2, 2)], "empty"),
        ([Span(0, 1)], "between module calls"),
        ([Span(2, 3, frozenset({1}))], "does not make"),
    ],
)
def test_spans_that_make_no_sense(spans: list[Span], match: str) -> None:
    with pytest.raises(IllegalSpanError, match=match):
        simulate(two_ops(), spans)


def test_what_a_span_does_is_derived_once() -> None:
    graph = two_ops()
    assert graph.remembered(Span(0, 2)) is None
    simulate(graph, [Span(0, 2)])
    derived = graph.remembered(Span(0, 2))
    assert derived is not None
    simulate(graph, [Span(0, 2)])
    assert graph.remembered(Span(0, 2)) is derived
