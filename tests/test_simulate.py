"""The simulator against a machine that runs the step event by event, and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.graph import Graph, IllegalSpanError, Span, simulate
from planner.graph.cost import REPLAY_OP_NS, TAPE_OP_NS, TAPE_SPAN_NS
from tests.graph_draws import span_sets, steps
from tests.graph_oracle import Machine
from tests.graphs import StepBuilder, chain, residual_chain, unet


@given(st.data())
@settings(max_examples=200, deadline=None)
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
