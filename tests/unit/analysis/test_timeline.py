"""The memory timeline adds up to the simulation, kind by kind, plain and planned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn import examples
from graph_draws import steps
from graphs import StepBuilder, chain, residual_chain, unet
from hypothesis import given

from planner.analysis.stored_plan import graph_for, keep_reasons, predict, timeline
from planner.documents.profile import Profile
from planner.errors import StalePlanError
from planner.graph import Graph, simulate
from planner.graph.live_bytes import KINDS, Line, Timeline
from planner.graph.timeline import memory_line
from planner.planning.offline import from_profile
from planner.reports.svg import SIDE, scaled, slim
from planner.reports.timeline import COLUMNS, columns_of, timeline_charts, timeline_text
from planner.search import floor

SIZE, WIDE = 1 << 16, 1 << 18
PROFILES = [chain(5, SIZE, WIDE), residual_chain(5, SIZE, WIDE), unet(3, SIZE, WIDE)]


def check(profile: Profile) -> None:
    """The kinds are never negative and add up to the simulator's own line."""
    graph = Graph.of(profile)
    for spans in ((), floor(graph)[0]):
        line, played = memory_line(graph, spans), simulate(graph, spans, detail=True)
        assert line.totals == played.timeline
        assert line.peak_bytes == played.peak_bytes
        assert tuple(line.by_kind) == KINDS
        sums = [sum(parts) for parts in zip(*line.by_kind.values(), strict=True)]
        assert tuple(sums) == line.totals
        assert all(size >= 0 for row in line.by_kind.values() for size in row)
        assert spans or not any(line.by_kind["replayed values"])
        assert sum(line.at_peak().values()) == line.peak_bytes


@pytest.mark.parametrize("profile", PROFILES)
def test_kinds_add_up_to_the_simulated_line(profile: Profile) -> None:
    check(profile)


@given(steps())
@examples(15)
def test_kinds_add_up_on_drawn_steps(drawn: tuple[StepBuilder, Profile]) -> None:
    check(drawn[1])


def test_a_plan_turns_kept_activations_into_replayed_values() -> None:
    profile = PROFILES[1]
    graph = Graph.of(profile)
    plan = from_profile(profile, floor(graph)[1], graph=graph)
    both = timeline(graph, plan)
    kept = [max(line.by_kind["kept activations"]) for line in (both.plain, both.planned)]
    assert kept[1] < kept[0]
    assert max(both.planned.by_kind["replayed values"]) > 0
    assert both.planned.peak_bytes == plan.predicted_peak_bytes <= both.budget_bytes
    assert both.plain.peak_bytes == profile.plain_peak_bytes
    assert both.phases[0][0] == "forward"


def test_the_unit_at_the_peak_is_named() -> None:
    profile = PROFILES[0]
    plan = from_profile(profile, profile.plain_peak_bytes)
    both = timeline(Graph.of(profile), plan)
    assert both.plain.peak_unit
    text = timeline_text(both)
    assert f"in {both.plain.peak_unit} (op {both.plain.peak_op} of {len(profile.ops)})" in text
    assert "parameters" in text


def test_every_kept_value_has_a_reason_with_its_price() -> None:
    profile = PROFILES[1]
    graph = Graph.of(profile)
    middle = (floor(graph)[1] + profile.plain_peak_bytes) // 2
    plan = from_profile(profile, middle, graph=graph)
    reasons = keep_reasons(graph, plan)
    assert [tuple(k.address for k in kept) for kept in reasons] == [s.keep for s in plan.segments]
    for kept in (k for row in reasons for k in row):
        assert kept.why
        assert kept.frees_bytes <= kept.size_bytes


def test_a_plan_is_predicted_anew_from_the_times_of_another_profile() -> None:
    profile = PROFILES[1]
    graph = Graph.of(profile)
    plan = from_profile(profile, floor(graph)[1], graph=graph)
    assert predict(graph, plan) == plan
    slower = replace(profile, step_time_ns=2 * profile.step_time_ns)
    again = predict(Graph.of(slower), plan)
    assert again.predicted_peak_bytes == plan.predicted_peak_bytes
    assert again.predicted_overhead_ratio == pytest.approx(
        plan.predicted_overhead_ratio / 2, abs=1e-6
    )


def test_a_plan_for_another_model_is_refused() -> None:
    plan = from_profile(PROFILES[0], PROFILES[0].plain_peak_bytes)
    other = replace(PROFILES[0], fingerprint="other")
    with pytest.raises(StalePlanError, match="another model"):
        graph_for(plan, other)


def line(*totals: int) -> Line:
    """Return a line of one kind."""
    return Line({"parameters": totals}, totals, totals.index(max(totals)), "a.unit")


def test_charts_share_a_scale_and_keep_the_peak() -> None:
    totals = [1] * 5000
    totals[1234] = 90
    long = line(*totals)
    columns = columns_of(long.totals)
    assert len(columns) == COLUMNS and 1234 in columns
    both = Timeline(long, line(*[1] * 5000), 50, 2500, (("forward", 0, 2500),))
    planned, plain = timeline_charts(both)
    assert planned.inside[0].place == plain.inside[0].place == pytest.approx(50 / (1.08 * 90))
    assert "op 1234 of 5000" in plain.title and "a.unit" in plain.title


def test_an_empty_step_makes_empty_charts() -> None:
    empty = Line({}, (), 0)
    assert timeline_charts(Timeline(empty, empty, 0, 0))
    assert "total" in timeline_text(Timeline(empty, empty, 0, 0))


def test_heights_grow_upwards_and_level_stretches_are_drawn_by_their_ends() -> None:
    assert (scaled(0, 10), scaled(10, 10), scaled(20, 10), scaled(1, 0)) == (SIDE, 0, 0, SIDE)
    assert slim([(0, 1), (1, 1), (2, 1), (3, 2)]) == [(0, 1), (2, 1), (3, 2)]
    assert slim([]) == []
