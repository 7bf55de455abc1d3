"""Within a segment: minimum cuts and MILP against every keep set."""

from __future__ import annotations

from itertools import combinations

from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from planner.search.segment.keep_milp import fill, least_ns
from planner.search.segment.min_cut import Choice, KeepProblem, Network, evaluate, hull
from planner.search.segment.nested import nested_cuts


@st.composite
def problems(draw: st.DrawFn) -> KeepProblem[int]:
    """Draw up to six ops, each making one value from earlier ones or from outside (-1, -2)."""
    count = draw(st.integers(1, 6))
    reads = [
        tuple(sorted(draw(st.sets(st.integers(-2, i - 1), min_size=1, max_size=3))))
        for i in range(count)
    ]
    sizes = {i: draw(st.integers(0, 9)) << 20 for i in range(-1, count)}
    return KeepProblem(
        reads,
        [(i,) for i in range(count)],
        [draw(st.integers(1, 9)) * 1000 for _ in range(count)],
        frozenset(draw(st.sets(st.integers(0, count - 1), min_size=1))),
        sizes,
        frozenset(draw(st.sets(st.integers(0, count - 1), max_size=1))),
    )


def every_choice(problem: KeepProblem[int]) -> list[Choice[int]]:
    values = [v for v in problem.maker if v not in problem.banned]
    subsets = (frozenset(s) for n in range(len(values) + 1) for s in combinations(values, n))
    return [evaluate(problem, keep) for keep in subsets]


@given(problems(), st.integers(1, 9), st.integers(1, 9))
@examples(40)
def test_one_price_is_optimal(problem: KeepProblem[int], time: int, byte: int) -> None:
    def price(choice: Choice[int]) -> int:
        return time * 1000 * choice.replay_ns + byte * choice.kept_bytes

    found = Network(problem).cheapest(time * 1000, byte)
    assert price(found) == min(price(c) for c in every_choice(problem))


@given(problems())
@examples(40)
def test_the_hull_supports_every_choice(problem: KeepProblem[int]) -> None:
    corners = hull(problem)
    assert corners[0].replay_ns == min(c.replay_ns for c in every_choice(problem))
    assert corners[-1].kept_bytes == min(c.kept_bytes for c in every_choice(problem))
    for left, right in zip(corners, corners[1:], strict=False):
        bytes_, time = left.kept_bytes - right.kept_bytes, right.replay_ns - left.replay_ns
        assert bytes_ > 0 and time >= 0
        line = left.replay_ns * bytes_ + left.kept_bytes * time
        for choice in every_choice(problem):
            assert choice.replay_ns * bytes_ + choice.kept_bytes * time >= line


@given(problems(), st.integers(0, 30))
@examples(30)
def test_fill_is_the_best_within_a_limit(problem: KeepProblem[int], limit: int) -> None:
    fit = [c.replay_ns for c in every_choice(problem) if c.kept_bytes <= limit << 20]
    found = fill(problem, limit << 20)
    assert (found.replay_ns if found else None) == (min(fit) if fit else None)
    bound = least_ns(problem, limit << 20)
    assert bound is not None
    if fit:
        assert bound <= min(fit) * (1 + 1e-6)


def test_fill_reaches_above_the_hull() -> None:
    # Three values of 4, 4 and 1 MiB: at a limit of 5 the hull offers less than a knapsack does.
    problem = KeepProblem(
        [(-1,)] * 3,
        [(0,), (1,), (2,)],
        [4000, 4000, 10],
        frozenset({0, 1, 2}),
        {0: 4 << 20, 1: 4 << 20, 2: 1 << 20},
    )
    found = fill(problem, 5 << 20)
    assert found is not None and found.replay_ns == 4000


def masks(count: int, mask_bytes: int) -> KeepProblem[int]:
    """Some random ops that drew in turn; each mask is needed."""
    numbers = range(count)
    return KeepProblem(
        [(-1,)] * count,
        [(i,) for i in numbers],
        [1000] * count,
        frozenset(numbers),
        dict.fromkeys(numbers, mask_bytes),
        drawn_after={i: i - 1 for i in numbers},
        state_bytes=5056,
    )


def test_a_mask_smaller_than_a_generator_state_stays() -> None:
    assert [c.kept_bytes for c in hull(masks(1, 1024))] == [1024]
    assert [c.kept_bytes for c in hull(masks(1, 8192))] == [8192, 5056]


def test_masks_that_are_drawn_again_in_turn_share_a_state() -> None:
    least = hull(masks(6, 1024))[-1]
    assert least.keep == frozenset() and least.kept_bytes == 5056
    assert evaluate(masks(6, 1024), frozenset({3})).kept_bytes == 1024 + 2 * 5056
    found = fill(masks(6, 1024), 6000)
    assert found is not None and found.keep == frozenset()
    assert fill(masks(6, 1024), 5000) is None


def test_printing_stays_off_standard_output(capfd: object) -> None:
    fill(KeepProblem([(-1,)], [(0,)], [5], frozenset({0}), {0: 1}), 0)
    assert capfd.readouterr().out == ""  # type: ignore[attr-defined]


def test_cuts_of_a_chain_have_binomial_lengths() -> None:
    assert nested_cuts([1] * 20, [1] * 20, 0) == []
    assert nested_cuts([1] * 15, [1] * 15, 1) == [(5, 1), (9, 1), (12, 1), (14, 1)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 3))
@examples(60)
def test_cuts_need_no_more_room_than_no_cuts(sizes: list[int], levels: int) -> None:
    cuts = nested_cuts(sizes, sizes, levels)
    assert all(0 < block < len(sizes) and 1 <= depth <= levels for block, depth in cuts)
    assert room(sizes, cuts, 0, len(sizes), 1, levels) <= sum(sizes)


def room(
    sizes: list[int], cuts: list[tuple[int, int]], a: int, b: int, depth: int, top: int
) -> int:
    """Most bytes live in a replay of blocks [a, b): cut values so far plus the part at hand."""
    if depth > top:
        return sum(sizes[a:b])
    edges = [a, *(p for p, d in cuts if d == depth and a < p < b), b]
    parts = zip(edges, edges[1:], strict=False)
    return max(
        sum(sizes[e] for e in edges[1 : i + 1]) + room(sizes, cuts, low, high, depth + 1, top)
        for i, (low, high) in enumerate(parts)
    )
