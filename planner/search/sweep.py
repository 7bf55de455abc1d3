"""Many budgets from one search, and the placements by hand beside them.

What a search learns about a graph (blocks, options, floor) does not depend on the budget, so a
sweep builds it once. All candidates of all budgets share one pool: whatever fits a budget also
fits a larger one, so the overhead never rises with the budget.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from planner.documents.frontier import Baseline
from planner.documents.plan import Exclusion, Pins
from planner.graph.model import Graph
from planner.graph.simulate import simulate
from planner.graph.span import IllegalSpanError, Span
from planner.search import baselines as by_hand
from planner.search.blocks import split
from planner.search.pool import Candidate, settle
from planner.search.solve import _planner as planner_of

MOST_SETTINGS = 16
"""Settings tried of each placement by hand."""


def sweep_budgets(
    graph: Graph,
    budgets_bytes: Sequence[int],
    pins: Pins = Pins(),  # noqa: B008  # frozen
    exclusions: Iterable[Exclusion] = (),
) -> tuple[Candidate | None, ...]:
    """Return, for each budget, the cheapest candidate within it; None below the floor.

    Raises:
        UnknownUnitError: a pin names no unit.
    """
    planner = planner_of(graph, pins, exclusions)
    pool = planner.pool.copy()
    for budget in sorted(set(budgets_bytes)):
        if budget >= planner.floor.peak_bytes:
            settle(pool, planner._propose, "dp", budget)
    return tuple(pool.best(budget) for budget in budgets_bytes)


def layers(graph: Graph) -> tuple[str, ...]:
    """Return the units that people put checkpoints on: outermost numbered calls with siblings.

    `transformer.h.0`, `transformer.h.1`, ...; several stacks (encoder and decoder) count together.
    """
    units = [u for u in graph.profile.units if u.root_call == 0 and u.enter < u.exit]
    stacks: dict[str, list[str]] = {}
    for name in dict.fromkeys(u.name for u in units):
        parts = name.split(".")
        if _NUMBER.fullmatch(parts[-1]) and not any(map(_NUMBER.fullmatch, parts[:-1])):
            stacks.setdefault(".".join(parts[:-1]), []).append(name)
    return tuple(name for stack in stacks.values() if len(stack) > 1 for name in stack)


_NUMBER = re.compile(r"\d+")


def hand_placements(graph: Graph) -> tuple[Baseline, ...]:
    """Return the placements by hand, each played by the same simulator as our plans."""
    found = []
    for name, setting, make in _placements(graph):
        try:
            result = simulate(graph, make())
        except IllegalSpanError:  # a group boundary at which the engine cannot stop
            continue
        ratio = round(result.overhead_ns / max(graph.profile.step_time_ns, 1), 6)
        found.append(Baseline(name, setting, result.peak_bytes, ratio))
    return tuple(found)


def _placements(graph: Graph) -> Iterator[tuple[str, str, Callable[[], tuple[Span, ...]]]]:
    yield "plain", "", tuple
    names = layers(graph)
    whole = by_hand.every_block(graph, names)
    if whole:
        yield "every block", f"{len(whole)} blocks", lambda: whole
    for k in _settings(1, len(whole) - 1):
        yield "best k of n", f"k={k} of {len(whole)}", partial(_best_of, graph, whole, k)
    blocks = len(split(graph).edges) - 1
    for k in _settings(2, blocks):
        yield "uniform segments", f"{k} segments", partial(by_hand.uniform, graph, k)
    if blocks > 1:
        yield "sqrt", f"of {blocks} blocks", partial(by_hand.sqrt, graph)


def _settings(first: int, last: int) -> list[int]:
    step = 1 + max(0, last - first) // MOST_SETTINGS
    return list(range(first, last + 1, step))


def _best_of(graph: Graph, whole: tuple[Span, ...], k: int) -> tuple[Span, ...]:
    """The first k, the last k or k evenly spread: whichever has the lowest peak."""
    count = len(whole)
    spread = tuple(whole[(2 * i + 1) * count // (2 * k)] for i in range(k))
    return min((whole[:k], whole[-k:], spread), key=lambda spans: simulate(graph, spans).peak_bytes)
