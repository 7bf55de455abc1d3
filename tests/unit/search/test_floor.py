"""The floor, the smallest peak that was found, depends on memory alone and can be asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from drawn import examples
from graph_draws import steps
from graphs import StepBuilder
from hypothesis import given
from hypothesis import strategies as st

from planner.documents import Profile
from planner.errors import InfeasibleBudgetError
from planner.graph import Graph, simulate
from planner.search import floor, search

PROFILES = Path(__file__).parents[3] / "profiles"
FACTORS = st.lists(st.floats(0.2, 5), min_size=1, max_size=12)


def with_times(profile: Profile, factors: list[float]) -> Graph:
    """The same step with other op times."""
    ops = (
        replace(op, time_ns=int(20_000 * factors[index % len(factors)]))
        for index, op in enumerate(profile.ops)
    )
    return Graph.of(replace(profile, ops=tuple(ops)))


@given(steps(), FACTORS, FACTORS)
@examples(25)
def test_times_do_not_move_the_floor(
    step: tuple[StepBuilder, Profile], one: list[float], other: list[float]
) -> None:
    lowest = {floor(with_times(step[1], factors))[1] for factors in (one, other)}
    assert len(lowest) == 1
    for factors in (one, other):
        graph = with_times(step[1], factors)
        (peak,) = lowest
        assert search(graph, peak).peak_bytes <= peak
        with pytest.raises(InfeasibleBudgetError) as raised:
            search(graph, peak - 1)
        assert raised.value.min_peak_bytes == peak


def with_draws(profile: Profile, random: set[int], scale: int) -> Profile:
    """The same step with random ops, and values as large as a generator's state, or larger."""
    ops = (
        replace(op, random=op.phase == "forward" and number in random)
        for number, op in enumerate(profile.ops)
    )
    storages = (replace(storage, bytes=storage.bytes * scale) for storage in profile.storages)
    return replace(
        profile,
        step=replace(profile.step, device="cpu"),
        ops=tuple(ops),
        storages=tuple(storages),
        plain_peak_bytes=profile.plain_peak_bytes * scale,
    )


@given(steps(), st.sets(st.integers(0, 8), min_size=1), st.sampled_from([50, 500]), FACTORS)
@examples(25)
def test_a_floor_above_generator_states_can_be_asked_for(
    step: tuple[StepBuilder, Profile], random: set[int], scale: int, factors: list[float]
) -> None:
    profile = with_draws(step[1], random, scale)
    spans, peak = floor(Graph.of(profile))
    graph = with_times(profile, factors)
    assert floor(graph)[1] == peak <= profile.plain_peak_bytes
    assert not spans or simulate(graph, spans).peak_bytes == peak
    assert search(graph, peak).peak_bytes <= peak
    with pytest.raises(InfeasibleBudgetError):
        search(graph, peak - 1)


@pytest.mark.parametrize("name", ["resnet", "vit"])
def test_nor_that_of_a_real_model(name: str) -> None:
    profile = Profile.load(PROFILES / f"{name}.json")
    known = search(Graph.of(profile), profile.plain_peak_bytes).floor_bytes
    graph = with_times(profile, [0.3, 2.0, 1.0, 4.0, 0.7])
    assert floor(graph)[1] == known
    assert search(graph, known).peak_bytes <= known
