"""The space of a graph: which keep levels each block has, and the plans to begin with.

Levels are the corners of the block's min-cut frontier, a few of them, and whatever the plans to
begin with do, so that the search can mix them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.graph.model import Graph
from planner.graph.span import Span
from planner.search.chain.blocks import split
from planner.search.chain.menu import FRONTIER_OPS
from planner.search.measured.points import Points, dropped_and_held
from planner.search.measured.space import STATES, Level, Space
from planner.search.pins import Wishes
from planner.search.segment.min_cut import hull
from planner.search.segment.ranges import Range

MOST_CORNERS = 5
"""Levels taken from a frontier, evenly over its corners."""
_MOST_CUTS = 14


def space_of(graph: Graph, wishes: Wishes, seeds: Sequence[Sequence[Span]]) -> Space:
    """Return the space in which a measured search moves.

    Args:
        graph: the step.
        wishes: pins and exclusions.
        seeds: spans whose levels and cuts must be there, besides those of the frontiers.
    """
    blocks = split(graph, wishes)
    empty: tuple[tuple[Level, ...], ...] = tuple(() for _ in blocks.first_of)
    names = tuple(graph.places.boundary(p, "enter").unit for p in blocks.edges[:-1])
    bare = Space(blocks.edges, blocks.kinds, empty, names)
    points = Points(graph, wishes, bare)
    found: list[set[Level]] = [set() for _ in blocks.first_of]
    for kind, block in enumerate(blocks.first_of):
        ends = blocks.edges[block], blocks.edges[block + 1]
        for dropped, held in _corners(Range(graph, ends, wishes)):
            found[kind].add(points.level_of(block, dropped, held))
    cuts: set[str] = set()
    for spans in seeds:
        given_up, kept = dropped_and_held(graph, spans)
        for block, kind in enumerate(blocks.kinds):
            found[kind].add(points.level_of(block, given_up, kept))
        cuts |= {f"cut {depth}" for span in spans for at, depth in span.cuts if at in blocks.edges}
    states = (*STATES, *sorted(cuts - set(STATES)))
    levels = tuple(tuple(sorted(row)) for row in found)
    return Space(blocks.edges, blocks.kinds, levels, names, states)


def _corners(here: Range) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """What to drop and what unsaved values to hold: as little as may be, corners, everything."""
    yield here.forced, frozenset()
    if here.stop - here.start <= FRONTIER_OPS and here.droppable:
        corners = hull(here.problem(), _MOST_CUTS)
        step = max(1, -(-len(corners) // MOST_CORNERS))
        for choice in corners[::step]:
            yield here.droppable - choice.keep, choice.keep - here.droppable
    yield here.droppable, frozenset()
