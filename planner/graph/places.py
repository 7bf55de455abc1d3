"""Names for positions: module boundaries, op addresses, and the same place in a later root call.

Used by `planner.graph.emit` to write plans, and by `planner.graph.effect` to find the instances
of a span. A position may be the edge of several calls; the rule for which one names it is
`_rank`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.documents.plan import Boundary, Edge
from planner.documents.profile import UnitCall
from planner.graph.address import Addresser, output_address, split_output
from planner.graph.span import Span

if TYPE_CHECKING:
    from planner.graph.model import Graph

_Call = tuple[int, str, int]


class Places:
    """Boundaries and addresses of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        profile = self._profile = graph.profile
        self._calls: dict[_Call, UnitCall] = {
            (unit.root_call, unit.name, unit.call): unit for unit in profile.units
        }
        depths = _depths(profile.units)
        self._edges: dict[int, list[tuple[int, UnitCall, Edge]]] = {}
        for unit, depth in zip(profile.units, depths, strict=True):
            if unit.root_call == 0:
                self._edges.setdefault(unit.enter, []).append((depth, unit, "enter"))
                self._edges.setdefault(unit.exit, []).append((depth, unit, "exit"))
        self._addresses: dict[tuple[int, int], tuple[str, ...]] = {}

    def boundary(self, position: int, prefer: Edge) -> Boundary:
        """Return a boundary of the first root call at a legal position.

        Args:
            position: a legal position.
            prefer: `enter` for the start of a span, `exit` for its end.
        """
        edges = self._edges[position]
        _, unit, edge = min(edges, key=lambda e: _rank(e, prefer))
        return Boundary(unit.name, unit.call, edge)

    def position(self, boundary: Boundary, root_call: int = 0) -> int | None:
        """Return the position of a boundary in a root call, or None if it has no such call."""
        unit = self._calls.get((root_call, boundary.unit, boundary.call))
        if unit is None:
            return None
        return unit.enter if boundary.edge == "enter" else unit.exit

    def addresses(self, start: int, stop: int) -> tuple[str, ...]:
        """Return the addresses of ops [start, stop) as ops of one segment."""
        found = self._addresses.get((start, stop))
        if found is None:
            ops, units, addresser = self._profile.ops, self._profile.units, Addresser()
            found = tuple(
                addresser.next(units[op.unit].name if op.unit >= 0 else "", op.name)
                for op in ops[start:stop]
            )
            self._addresses[(start, stop)] = found
        return found

    def keep_addresses(self, span: Span) -> tuple[str, ...]:
        """Return the addresses of a span's kept values, in forward order."""
        found = []
        for index, address in enumerate(self.addresses(span.start, span.stop), span.start):
            for output, value in enumerate(self._graph.outputs(index)):
                if value in span.keep:
                    found.append(output_address(address, output))
        return tuple(found)

    def kept_value(self, address: str, index: dict[str, int]) -> int | None:
        """Return the value at an address, where `index` numbers the segment's ops by address."""
        try:
            op_address, output = split_output(address)
        except ValueError:
            return None
        op = index.get(op_address)
        if op is None or output >= len(self._graph.outputs(op)):
            return None
        return self._graph.outputs(op)[output]

    def index(self, start: int, stop: int) -> dict[str, int]:
        """Return op numbers by address for the segment [start, stop)."""
        return {a: i for i, a in enumerate(self.addresses(start, stop), start)}

    def instance(self, span: Span, root_call: int) -> Span | None:
        """Return the same span in another root call; None where that lacks its boundaries."""
        if root_call == 0:
            return span
        start = self.position(self.boundary(span.start, "enter"), root_call)
        stop = self.position(self.boundary(span.stop, "exit"), root_call)
        if start is None or stop is None or start >= stop:
            return None
        index = self.index(start, stop)
        keep = (self.kept_value(a, index) for a in self.keep_addresses(span))
        here = self.addresses(span.start, span.stop)
        cuts = ((index.get(here[p - span.start]), depth) for p, depth in span.cuts)
        return Span(
            start,
            stop,
            frozenset(v for v in keep if v is not None),
            tuple((p, depth) for p, depth in cuts if p is not None),
        )


def _rank(edge: tuple[int, UnitCall, Edge], prefer: Edge) -> tuple[bool, bool, bool, int]:
    """Order the edges at one position; the least one names it.

    Calls in which no op ran come last, without regard to `prefer`: they may stand on either side
    of the other edges, and a span that ends there must not close after the next one opens.
    Before them come root edges, edges of the other kind, and the outermost edge first of all.
    """
    depth, unit, kind = edge
    empty = unit.enter == unit.exit
    return empty, unit.parent < 0, not empty and kind != prefer, depth


def _depths(units: tuple[UnitCall, ...]) -> list[int]:
    depths: list[int] = []
    for unit in units:  # each call stands after the call around it
        depths.append(depths[unit.parent] + 1 if unit.parent >= 0 else 0)
    return depths
