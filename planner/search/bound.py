"""A lower bound on the overhead of any plan, to say how far from the best a plan may be.

At a moment t after forward, everything that backward still needs must be made from what is live
at t. So the replay time of any plan within a budget is at least that of the best keep set of the
whole forward with as many kept bytes as the budget leaves at t; spans and cuts only add limits.
The linear relaxation of that problem (`planner.search.fill.least_ns`) bounds it from below. Each
op that runs again was once under a tape, and some span was opened, so that is counted too.
"""

from __future__ import annotations

import math

from planner.graph.cost import TAPE_SPAN_NS
from planner.graph.model import Graph
from planner.search.fill import least_ns
from planner.search.frontier import KeepProblem
from planner.search.pins import Wishes
from planner.search.ranges import Range


def lower_bound_ns(graph: Graph, edges: tuple[int, int], wishes: Wishes, budget: int) -> int | None:
    """Return a bound in ns on the overhead of every plan within `budget` bytes.

    Args:
        graph: the step; one root call only.
        edges: first and last position of the root call.
        wishes: pins and exclusions.
        budget: the budget in bytes.

    Returns:
        The bound, or None where there is none.
    """
    plain = graph.plain_live
    if len(graph.root_calls) != 1 or edges[1] >= graph.n_ops or int(plain.max()) <= budget:
        return None
    moment = edges[1] + int(plain[edges[1] :].argmax())
    whole = Range(graph, edges, wishes)
    problem = whole.problem()
    alive = frozenset(v for v in problem.wanted if _alive(graph, v, moment))
    fixed = int(plain[moment]) - sum(
        graph.profile.storages[s].bytes for s in {graph.storage_of(v) for v in alive}
    )
    sizes = {v: s for v, s in problem.size_bytes.items() if v in alive or v not in problem.wanted}
    # An op may serve several spans, but each that runs again was recorded once at least.
    least = least_ns(
        KeepProblem(problem.reads, problem.makes, problem.cost_ns, alive, sizes, problem.banned),
        budget - fixed,
    )
    if least is None or math.isinf(least):
        return None
    return int(least * (1 - 1e-6)) + (TAPE_SPAN_NS if least > 0 else 0)


def _alive(graph: Graph, value: int, op: int) -> bool:
    storage = graph.profile.storages[graph.storage_of(value)]
    return storage.birth <= op <= storage.death
