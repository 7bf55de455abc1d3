"""Never worse than the dynamic program for heterogeneous chains; see `tests.chain_oracle`."""

from __future__ import annotations

import pytest
from chain_oracle import SECOND_NS, Oracle, Stage, graph_of
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from planner.graph import Span, simulate
from planner.search import floor, search
from planner.search.chain.facts import Facts
from planner.search.chain.recursion import Recursion
from planner.search.chain.windows import backward_windows
from planner.search.segment.spans import droppable

UNIT = 1 << 16
SIZES = st.integers(1, 8).map(lambda n: n * UNIT)
OTHERS = st.integers(0, 8).map(lambda n: max(0, n - 3) * UNIT)  # often none
TIMES = st.integers(1, 9)
STAGES = st.builds(Stage, SIZES, OTHERS, TIMES, TIMES, OTHERS, OTHERS)


def chains(least: int, most: int) -> st.SearchStrategy[list[Stage]]:
    return st.lists(STAGES, min_size=least, max_size=most)


@given(chains(2, 7), SIZES, st.floats(0, 1))
@examples(60)
def test_never_dearer_than_the_oracle(stages: list[Stage], source: int, share: float) -> None:
    graph, oracle = graph_of(stages, source), Oracle(stages, source)
    plain = graph.profile.plain_peak_bytes
    lowest = oracle.floor(plain)
    assert floor(graph)[1] <= lowest
    budget = lowest + int((plain - lowest) * share)
    least = oracle.extra_s(budget)
    assert least is not None
    assert search(graph, budget).overhead_ns // SECOND_NS <= least


@given(chains(1, 7), SIZES)
@examples(60)
def test_both_count_the_same_bytes(stages: list[Stage], source: int) -> None:
    oracle = Oracle(stages, source)
    plain = graph_of(stages, source).profile.plain_peak_bytes
    assert oracle.extra_s(plain) == 0
    assert oracle.extra_s(plain - 1) != 0


@pytest.mark.parametrize(
    ("budget", "extra"),
    [
        (7, 0),  # a_0 to a_5 and the gradient that the loss gives
        (6, 2),  # one less: a run of two stages again
        (5, 3),
        (4, 9),  # no room for checkpoints: 4 + 3 + 2 forwards again from the input
        (3, None),
    ],
)
def test_the_oracle_on_a_uniform_chain(budget: int, extra: int | None) -> None:
    oracle = Oracle([Stage(1, 0, 1, 1)] * 6, 1)
    assert oracle.extra_s(budget) == extra


@given(chains(2, 6), SIZES)
@examples(40)
def test_ways_to_replay_take_what_they_say(stages: list[Stage], source: int) -> None:
    graph = graph_of([*stages, Stage(UNIT, 0, 1, 1)], source)
    count = len(stages)  # the loss is not replayed
    edges = graph.legal_positions
    wanted = droppable(graph, edges[0], edges[-1])
    windows = backward_windows(graph, edges)
    facts = Facts.of(graph, edges, windows, wanted)
    dropped = droppable(graph, 0, count)
    kept = frozenset(v for op in range(count) for v in graph.outputs(op)) - dropped
    ways = Recursion(facts, range(count + 1), 1_000).front(0, count)
    assert [w.time_ns for w in ways] == sorted(w.time_ns for w in ways)
    for way in ways if dropped else ():
        played = simulate(graph, [Span(0, count, kept, tuple(way.cuts()))], detail=True)
        assert played.replay_ns <= way.time_ns
        replays = played.timeline[windows[count - 1].start : windows[0].stop]
        assert max(replays) <= facts.pending[count] + way.room_bytes
