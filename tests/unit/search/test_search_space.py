"""Plans as points: what goes in comes out, and the sampler proposes only what is worth a run."""

from __future__ import annotations

import json
import random

import pytest
from trials_bench import believed, blocks

from planner.graph import Graph, IllegalSpanError, Span, simulate
from planner.search import search
from planner.search.measured.charter import Charter, facts_of
from planner.search.measured.levels import space_of
from planner.search.measured.novelty import Known, is_new
from planner.search.measured.points import Points, dropped_and_held
from planner.search.measured.seeds import runners_up
from planner.search.measured.space import Space
from planner.search.pins import Wishes

Spans = tuple[Span, ...]


@pytest.fixture(scope="module")
def graph() -> Graph:
    model, x = blocks()
    return Graph.of(believed(model, (x,))[1])


@pytest.fixture(scope="module")
def seeds(graph: Graph) -> tuple[Spans, ...]:
    """The best plans at several budgets, and what stands next to them."""
    peak = graph.profile.plain_peak_bytes
    found: dict[Spans, None] = {}
    for part in (0.5, 0.65, 0.8, 0.95):
        budget = int(peak * part)
        found[search(graph, budget).spans] = None
        found.update(dict.fromkeys(c.spans for c in runners_up(graph, budget, 4)))
    return tuple(found)


def test_seeds_come_out_as_they_went_in(graph: Graph, seeds: tuple[Spans, ...]) -> None:
    points = Points(graph, Wishes(), space_of(graph, Wishes(), seeds))
    for spans in seeds:
        assert points.spans(points.remember(spans)) == spans


def test_the_nearest_point_gives_up_the_same(graph: Graph, seeds: tuple[Spans, ...]) -> None:
    points = Points(graph, Wishes(), space_of(graph, Wishes(), seeds))
    best = [search(graph, int(graph.profile.plain_peak_bytes * p)).spans for p in (0.65, 0.8)]
    for spans in best:
        again = points.spans(points.nearest(spans))
        assert dropped_and_held(graph, again)[0] == dropped_and_held(graph, spans)[0]


def test_every_point_is_a_plan_or_is_said_not_to_run(
    graph: Graph, seeds: tuple[Spans, ...]
) -> None:
    space = space_of(graph, Wishes(), seeds)
    points, chance = Points(graph, Wishes(), space), random.Random(0)
    ran = 0
    for _ in range(60):
        point = {name: chance.choice(list(values)) for name, values in space.parameters.items()}
        spans = points.spans(point)
        try:
            played = simulate(graph, spans)
        except IllegalSpanError:
            continue
        ran += 1
        assert played.peak_bytes > 0
        assert points.spans(points.remember(spans)) == spans
    assert ran > 30


def test_levels_stand_in_the_order_of_what_they_free(
    graph: Graph, seeds: tuple[Spans, ...]
) -> None:
    for levels in space_of(graph, Wishes(), seeds).levels:
        assert [level.freed_bytes for level in levels] == sorted(v.freed_bytes for v in levels)
        assert len(set(levels)) == len(levels) >= 1


def test_pinned_values_stay(graph: Graph) -> None:
    saved = frozenset(range(4, 9))
    wishes = Wishes(saved=saved)
    space = space_of(graph, wishes, ())
    points, chance = Points(graph, wishes, space), random.Random(1)
    stay = {v for op in saved for v in graph.outputs(op)}
    for _ in range(30):
        point = {name: chance.choice(list(values)) for name, values in space.parameters.items()}
        assert not stay & dropped_and_held(graph, points.spans(point))[0]


def test_a_charter_goes_through_json(graph: Graph, seeds: tuple[Spans, ...]) -> None:
    charter = Charter(facts_of(graph, 1000), space_of(graph, Wishes(), seeds), seeds)
    text = json.dumps(charter.to_dict(graph))
    assert Charter.from_dict(json.loads(text), graph) == charter
    space = charter.space
    assert Space.from_dict(json.loads(json.dumps(space.to_dict()))) == space


def test_what_can_only_be_slower_is_no_news() -> None:
    small = Known(frozenset({1, 2}), frozenset({9}), 100)
    assert not is_new(Known(frozenset({1, 2, 3}), frozenset(), 150), [small])
    assert is_new(Known(frozenset({1, 3}), frozenset(), 150), [small])  # keeps 2
    assert is_new(Known(frozenset({1, 2, 3}), frozenset({8}), 150), [small])  # holds something
    assert is_new(Known(frozenset({1, 2, 3}), frozenset(), 50), [small])  # predicted to be faster
    over = Known(frozenset({1, 2}), frozenset({9}), 100, fits=False)
    assert is_new(Known(frozenset({1, 2, 3}), frozenset(), 150), [over])
    assert not is_new(Known(frozenset({1, 2}), frozenset({9}), 90), [over])
