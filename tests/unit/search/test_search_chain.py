"""Across blocks: dynamic program = MILP = every path; the bound is below, the floor is tight."""

from __future__ import annotations

from collections.abc import Iterator

from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from planner.search.chain.dynamic_program import Chain
from planner.search.chain.milp import fits, solve_milp
from planner.search.chain.states import Option, undominated

MIB = 1 << 20


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    blocks = draw(st.integers(1, 5))
    size = st.integers(0, 8).map(lambda n: n * MIB)
    options = [Option(b, b + 1, 0, draw(size) + 20 * MIB, 0) for b in range(blocks)]
    for _ in range(draw(st.integers(1, 10))):
        first = draw(st.integers(0, blocks - 1))
        stop = draw(st.integers(first + 1, blocks))
        need = draw(size) + 12 * MIB
        options.append(Option(first, stop, draw(size), need, draw(st.integers(1, 99)) * 1000))
    return Chain(blocks, options, draw(size) + 20 * MIB)


def paths(chain: Chain, block: int = 0) -> Iterator[list[Option]]:
    if block == chain.n_blocks:
        yield []
    for option in chain.options:
        if option.first == block:
            for rest in paths(chain, option.stop):
                yield [option, *rest]


def cheapest(chain: Chain, budget: int) -> int | None:
    costs = (sum(o.cost_ns for o in path) for path in paths(chain) if fits(chain, path, budget))
    return min(costs, default=None)


@given(chains(), st.integers(8, 30))
@examples(60)
def test_dynamic_program_milp_and_every_path_agree(chain: Chain, budget: int) -> None:
    best = cheapest(chain, budget * MIB)
    found = chain.solve(budget * MIB)
    other = solve_milp(chain, budget * MIB)
    assert (found.cost_ns if found else None) == best
    assert (other.cost_ns if other else None) == best
    if found is not None:
        assert found.exact
        assert fits(chain, list(found.options), budget * MIB)
        assert chain.bound(budget * MIB) <= found.cost_ns


@given(chains())
@examples(40)
def test_the_lowest_budget_is_the_lowest(chain: Chain) -> None:
    low = chain.lowest()
    assert chain.solve(low) is not None
    assert low == 0 or chain.solve(low - 1) is None


@given(chains(), st.integers(8, 30), st.integers(0, 9))
@examples(40)
def test_more_room_never_costs_more(chain: Chain, budget: int, more: int) -> None:
    tight, wide = chain.solve(budget * MIB), chain.solve((budget + more) * MIB)
    assert tight is None or (wide is not None and wide.cost_ns <= tight.cost_ns)


@given(chains(), st.integers(8, 30), st.integers(1, 4))
@examples(40)
def test_few_states_still_fit(chain: Chain, budget: int, states: int) -> None:
    found = chain.solve(budget * MIB, most_states=1 + states)
    assert found is None or fits(chain, list(found.options), budget * MIB)


def test_dominated_options_go() -> None:
    good = Option(0, 1, 5, 9, 3)
    worse = Option(0, 1, 4, 9, 4)
    other = Option(0, 1, 6, 12, 4)
    assert undominated([worse, other, good]) == [good, other]
