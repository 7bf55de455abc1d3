"""Within one segment: the lower hull of kept bytes against replay time, by minimum cuts.

Problem: backward needs some values of a segment. Each is kept (its bytes stay in memory) or made
again (its op runs again, which needs the op's inputs, kept or made again in turn). Minimise
replay time + price * kept bytes.

Method: for one price this is a project-selection problem (Picard 1976, "Maximal closure of a
graph"), hence a minimum cut: a needed value hangs on the source, cutting `value -> made again`
keeps it, cutting `op -> sink` runs the op. A random op that runs again without the one that drew
right before it takes a generator state: the edge between the two is cut. The prices at which the
answer changes are found by
asking at the slope between two neighbouring answers (Eisner and Severance 1976). Keep sets for
recomputation by cuts are used in activation checkpointing compilers, e.g. Zhao et al. 2023,
"Rockmate", and the min-cut partitioner of functorch.

Optimal: every returned choice is optimal for its price, so the choices are exactly the corners
of the lower convex hull. Choices above the hull are left to `planner.search.segment.keep_milp`.
With generator states a cut may count on the state that an op leaves which nothing needs, and which
will not run again: the choice is then evaluated with the state, and may be off the hull.
All capacities are Python integers, so no rounding enters.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov, build_residual_network

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class KeepProblem(Generic[K]):
    """What to keep of one segment.

    Attributes:
        reads: what each op of the segment reads, in forward order.
        makes: what each op makes.
        cost_ns: time to run each op again.
        needed: values, made by the ops, that backward asks for.
        size_bytes: bytes it costs to keep a value. A value from outside that is not listed is
            there for free; a listed one costs its bytes when some replayed op reads it.
        banned: values that cannot stay (overwritten in forward).
        drawn_after: for each random op, the op that drew right before it, or -1.
        state_bytes: size of a generator state. It is held for a random op that runs again, unless
            the op that drew right before runs again, too, and leaves the state behind.
    """

    reads: Sequence[Sequence[K]]
    makes: Sequence[Sequence[K]]
    cost_ns: Sequence[int]
    needed: frozenset[K]
    size_bytes: Mapping[K, int]
    banned: frozenset[K] = frozenset()
    drawn_after: Mapping[int, int] = field(default_factory=dict)
    state_bytes: int = 0
    maker: dict[K, int] = field(init=False)

    def __post_init__(self) -> None:
        maker = {key: i for i, made in enumerate(self.makes) for key in made}
        object.__setattr__(self, "maker", maker)


@dataclass(frozen=True, slots=True)
class Choice(Generic[K]):
    """One keep set: which values stay, which ops run again, what both cost.

    `kept_bytes` counts the generator states that running again takes.
    """

    keep: frozenset[K]
    run: frozenset[int]
    kept_bytes: int
    replay_ns: int


def evaluate(problem: KeepProblem[K], keep: frozenset[K]) -> Choice[K]:
    """Return the choice that keeps `keep`, less the values that nothing would then read.

    Values from outside that replay reads count as kept when they cost bytes.
    """
    run: set[int] = set()
    used: set[K] = set()
    todo = list(problem.needed)
    while todo:
        key = todo.pop()
        if key in used:
            continue
        used.add(key)
        index = problem.maker.get(key, -1)
        if index >= 0 and key not in keep and index not in run:
            run.add(index)
            todo.extend(problem.reads[index])
    held = frozenset(k for k in used if k in keep or k not in problem.maker)
    states = sum(op in run and before not in run for op, before in problem.drawn_after.items())
    kept_bytes = sum(problem.size_bytes.get(k, 0) for k in held) + states * problem.state_bytes
    replay_ns = sum(problem.cost_ns[i] for i in run)
    return Choice(
        frozenset(k for k in held if k in problem.maker), frozenset(run), kept_bytes, replay_ns
    )


def hull(problem: KeepProblem[K], most: int = 32) -> list[Choice[K]]:
    """Return the corners of the lower hull, from the least replay to the fewest bytes kept.

    Args:
        problem: the segment.
        most: stop refining after this many cuts; the result is then a subset of the corners.
    """
    network = Network(problem)
    everything = network.cheapest(1 + sum(problem.size_bytes.values()), 1)
    least = network.cheapest(1, 1 + sum(problem.cost_ns))
    corners = {everything.kept_bytes: everything}
    if least.kept_bytes < everything.kept_bytes:
        corners[least.kept_bytes] = least
        todo = [(everything, least)]
        while todo and most > 0:
            left, right = todo.pop(0)
            most -= 1
            found = _between(network, left, right)
            if found is not None:
                corners[found.kept_bytes] = found
                todo += [(left, found), (found, right)]
    return [corners[k] for k in sorted(corners, reverse=True)]


def _between(network: Network[K], left: Choice[K], right: Choice[K]) -> Choice[K] | None:
    """The best choice at the slope between two, or None when nothing lies below their line."""
    weight_time = left.kept_bytes - right.kept_bytes
    weight_byte = right.replay_ns - left.replay_ns
    if weight_time <= 0 or weight_byte <= 0:
        return None
    found = network.cheapest(weight_time, weight_byte)
    line = left.replay_ns * weight_time + left.kept_bytes * weight_byte
    below = found.replay_ns * weight_time + found.kept_bytes * weight_byte < line
    return found if below else None


class Network(Generic[K]):
    """The flow network of a problem, cut again for each price of a byte.

    Its nodes are the values that making all needed ones could read, ``("need", value)``, and the
    ops that make them, ``("op", index)``. Only the capacities depend on the price: of an edge with
    ``bytes`` they follow the price of a byte, of one with ``ns`` the price of time, from `least`
    on; any other edge is infinite.
    """

    def __init__(self, problem: KeepProblem[K]) -> None:
        self.problem = problem
        self._graph = nx.DiGraph()
        self._seen: dict[K, None] = {}
        self._link()
        self._residual = build_residual_network(self._graph, "capacity")
        self._finite, self._infinite = [], []
        for start, stop, prices in self._graph.edges(data=True):
            if "capacity" not in prices:
                self._infinite.append(self._residual[start][stop])
            elif prices["capacity"]:  # no price makes something of nothing
                self._finite.append((self._residual[start][stop], prices))

    def cheapest(self, weight_time: int, weight_byte: int) -> Choice[K]:
        """Return a choice that minimises weight_time * replay_ns + weight_byte * kept_bytes."""
        problem = self.problem
        if "sink" not in self._graph or "source" not in self._graph:
            return evaluate(problem, frozenset())
        self._weigh(weight_time, weight_byte)
        boykov_kolmogorov(self._graph, "source", "sink", residual=self._residual)
        _, far = self._residual.graph["trees"]  # far: what can reach the sink
        keep = frozenset(
            key
            for key in self._seen
            if ("need", key) not in far
            and key in problem.maker
            and ("op", problem.maker[key]) in far
        )
        return evaluate(problem, keep)

    def _link(self) -> None:
        """Add all edges, for a price of 1; one without a capacity is infinite."""
        problem, graph = self.problem, self._graph
        todo = list(problem.needed)
        graph.add_edges_from(("source", ("need", key)) for key in problem.needed)
        linked: set[int] = set()  # ops
        while todo:
            key = todo.pop()
            if key in self._seen:
                continue
            self._seen[key] = None
            index = problem.maker.get(key, -1)
            made_by = "sink" if index < 0 else ("op", index)
            size = problem.size_bytes.get(key, 0)
            if key in problem.banned:
                graph.add_edge(("need", key), made_by)
            elif index >= 0 or size:
                graph.add_edge(("need", key), made_by, capacity=size, bytes=size)
            if index < 0 or index in linked:
                continue
            linked.add(index)
            time = problem.cost_ns[index]
            graph.add_edge(made_by, "sink", capacity=max(1, time), ns=time, least=1)
            for read in problem.reads[index]:
                if read in problem.maker or read in problem.size_bytes:
                    graph.add_edge(made_by, ("need", read))
                    todo.append(read)
        self._link_draws(linked)

    def _link_draws(self, linked: set[int]) -> None:
        """Add what generator states cost."""
        size = self.problem.state_bytes
        for op, before in self.problem.drawn_after.items():
            if op in linked and before in linked:
                self._graph.add_edge(("op", op), ("op", before), capacity=size, bytes=size)
            elif op in linked:
                self._graph[("op", op)]["sink"]["bytes"] = size

    def _weigh(self, weight_time: int, weight_byte: int) -> None:
        """Set the capacities for a price."""
        total = 0
        for edge, prices in self._finite:
            edge["capacity"] = max(
                prices.get("least", 0),
                prices.get("ns", 0) * weight_time + prices.get("bytes", 0) * weight_byte,
            )
            total += edge["capacity"]
        self._residual.graph["inf"] = 3 * total or 1
        for edge in self._infinite:
            edge["capacity"] = 3 * total or 1
