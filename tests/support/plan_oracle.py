"""Every plan of a tiny graph, simulated: as cheap as it gets.

Every subset of the values that can be given up, in the spans that the search would make of it, with
every subset of the unsaved values kept as sources. Exponential; meant for a dozen values. Plans
whose replays are cut are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from planner.graph import Graph, IllegalSpanError, Span, simulate
from planner.search.segment.spans import droppable, tight_spans


def exhaustive(graph: Graph, budget_bytes: int) -> tuple[tuple[Span, ...], int] | None:
    """Return the cheapest spans within the budget and their overhead in ns, or None."""
    best: tuple[int, int, tuple[Span, ...]] | None = None
    for number, spans in enumerate(all_plans(graph)):
        result = simulate(graph, spans)
        if result.peak_bytes <= budget_bytes and (best is None or result.overhead_ns < best[0]):
            best = (result.overhead_ns, number, spans)
    return None if best is None else (best[2], best[0])


def all_plans(graph: Graph) -> Iterator[tuple[Span, ...]]:
    """Yield the plans that can run, the empty one first."""
    start, stop = graph.legal_positions[0], graph.legal_positions[-1]
    wanted = sorted(droppable(graph, start, stop))
    free = _unsaved(graph, start, stop)
    for dropped in _subsets(wanted):
        for keep in _subsets(free) if dropped else [()]:
            if dropped:
                spans = tight_spans(graph, start, stop, frozenset(dropped), frozenset(keep))
            else:
                spans = ()
            try:
                simulate(graph, spans)
            except IllegalSpanError:
                continue
            yield spans


def _unsaved(graph: Graph, start: int, stop: int) -> list[int]:
    """Values that nobody saves and that a later op reads."""
    read = {v for i in range(start, stop) for v in graph.flow(i).reads}
    return [
        v
        for i in range(start, stop)
        for v in graph.outputs(i)
        if v in read
        and not graph.saved_of(v)
        and graph.overwritten_at(v) < 0
        and graph.made_inside(v, start, stop)
    ]


def _subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(items) + 1):
        yield from combinations(items, size)
