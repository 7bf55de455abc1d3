"""Within one segment: the best keep set for a given number of bytes, and a bound on it, by HiGHS.

Problem: as in `min_cut`, but with a limit on the kept bytes instead of a price.
That is a knapsack over closures and NP-hard; the minimum cuts reach only the corners of its lower
hull. A mixed-integer program reaches the points between.

    minimise  sum(cost_i * run_i)
    keep_v + run_maker(v) >= 1        for every needed value v
    keep_r + run_maker(r) >= run_i    for every value r that op i reads
    state_i + run_before(i) >= run_i  for every random op i, and the op that drew right before
    sum(size_v * keep_v) + sum(size * state_i) <= limit

`least_ns` also counts what tapes cost. A tape covers whole cells of ops, all cells from the making
to the last pack of what it gives up, and the ops that run again:

    minimise  ... + sum(cell_c * over_c) + span * sum(open_c)
    over_c + keep_v >= 1              for every cell c that giving up v needs
    over_c >= run_i                   for every op i of cell c
    open_c >= over_c - over_c-1       a tape is opened
    sum(open_c) >= 1

Optimal: `fill` when HiGHS finishes (gap 0). `least_ns` is a true lower bound: the linear
relaxation, which equals the Lagrangian bound of the cuts because fixed prices leave a minimum cut
(with tapes too: what opens one is the difference of two neighbours), or the bound that branching
has proved by its last node.
Sizes are scaled to MiB inside; the result is rounded and evaluated again in integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from planner.search.native_stdout import suppressed_stdout
from planner.search.segment.min_cut import Choice, KeepProblem, evaluate

K = TypeVar("K", bound=Hashable)
_MIB = float(1 << 20)
_MOST_NODES = 2_000
"""Of branch and bound. A limit in seconds would make results depend on the machine."""
_INFEASIBLE = 2  # scipy's status


@dataclass(frozen=True)
class Tapes(Generic[K]):
    """What tapes over the ops of a problem cost.

    Attributes:
        cell_of: for each op, the cell it stands in; a tape starts and stops between cells.
        cell_ns: what a tape over each cell costs.
        span_ns: what opening one costs.
        covers: for each needed value, the cells under a tape when it is dropped.
    """

    cell_of: Sequence[int]
    cell_ns: Sequence[int]
    span_ns: int
    covers: Mapping[K, range]


def fill(problem: KeepProblem[K], limit_bytes: int) -> Choice[K] | None:
    """Return the choice with the least replay time that keeps at most `limit_bytes`.

    None when there is none, or none was found within the nodes allowed.
    """
    if not problem.needed:
        return evaluate(problem, frozenset())
    model = _Model(problem, None)
    with suppressed_stdout():
        result = milp(
            model.cost,
            constraints=[
                LinearConstraint(model.rows, lb=model.right),
                LinearConstraint(model.sizes[None, :], ub=limit_bytes / _MIB),
            ],
            integrality=np.ones(model.size),
            bounds=Bounds(model.low, 1),
            options={"mip_rel_gap": 0.0, "node_limit": _MOST_NODES},
        )
    if result.x is None:
        return None
    choice = evaluate(problem, model.kept(result.x))
    return choice if choice.kept_bytes <= limit_bytes else None


def least_ns(
    problem: KeepProblem[K],
    limit_bytes: int,
    tapes: Tapes[K] | None = None,
    nodes: int = 0,
) -> float | None:
    """Return a lower bound in ns on the added time when at most `limit_bytes` are kept.

    Args:
        problem: the segment.
        limit_bytes: the limit.
        tapes: what tapes cost; some tape is open.
        nodes: how far to branch to whole numbers; with none, the linear relaxation must do.

    Returns:
        The bound; None when HiGHS finds none, infinity when no choice keeps so little.
    """
    if not problem.needed:
        return 0.0
    model = _Model(problem, tapes)
    with suppressed_stdout():
        result = milp(
            model.cost,
            constraints=[
                LinearConstraint(model.rows, lb=model.right),
                LinearConstraint(model.sizes[None, :], ub=limit_bytes / _MIB),
            ],
            integrality=np.full(model.size, int(nodes > 0)),
            bounds=Bounds(model.low, 1),
            options={"mip_rel_gap": 0.0, "node_limit": nodes or _MOST_NODES},
        )
    if result.status == _INFEASIBLE:
        return float("inf")
    bound = result.mip_dual_bound if nodes > 0 else result.fun
    return None if bound is None else float(bound) * 1e3


class _Model(Generic[K]):
    """The program's matrices.

    Variables are `run`s, `keep`s, `over` and `open` by cell, then `state`s of random ops.
    """

    def __init__(self, problem: KeepProblem[K], tapes: Tapes[K] | None) -> None:
        ops = _reachable(problem)
        number = {op: i for i, op in enumerate(ops)}
        values = dict.fromkeys((*problem.needed, *(r for op in ops for r in problem.reads[op])))
        self.values = [v for v in values if v in problem.maker or problem.size_bytes.get(v)]
        at = {v: len(ops) + i for i, v in enumerate(self.values)}
        self.ops = ops
        self.maker = problem.maker
        over = len(ops) + len(self.values)  # the first such variable
        cells = len(tapes.cell_ns) if tapes is not None else 0
        state = over + 2 * cells  # the first such variable
        draws = [op for op in ops if op in problem.drawn_after]
        self.size = state + len(draws)
        self.low = np.zeros(self.size)
        self.cost = np.zeros(self.size)
        self.cost[: len(ops)] = [problem.cost_ns[op] / 1e3 for op in ops]
        self.sizes = np.zeros(self.size)
        self.entries: list[tuple[int, int, float]] = []
        self.right_sides: list[float] = []
        self._make_or_keep(problem, number, at)
        if tapes is not None:
            self.cost[over : over + cells] = np.array(tapes.cell_ns) / 1e3
            self.cost[over + cells : state] = tapes.span_ns / 1e3
            self._cover(tapes, number, at, problem.needed, over)
        for column, op in enumerate(draws, state):
            before = [number[b] for b in (problem.drawn_after[op],) if b in number]
            self._row([column, *before], number[op], 0.0)
            self.sizes[column] = problem.state_bytes / _MIB
        for v, column in at.items():
            self.sizes[column] = problem.size_bytes.get(v, 0) / _MIB
            if v in problem.banned:
                self._row([], column, 0.0)  # -keep >= 0
        self.right = np.array(self.right_sides)
        self.rows = self._matrix()

    def _make_or_keep(
        self, problem: KeepProblem[K], number: dict[int, int], at: dict[K, int]
    ) -> None:
        """Every needed value, and every value that an op reads, is kept or made."""
        for v in problem.needed:
            self._row([at[v], number[problem.maker[v]]], None, 1.0)
        for op in self.ops:
            for read in problem.reads[op]:
                if read in at:
                    makers = [number[problem.maker[read]]] if read in problem.maker else []
                    self._row([at[read], *makers], number[op], 0.0)

    def _cover(
        self,
        tapes: Tapes[K],
        number: dict[int, int],
        at: dict[K, int],
        needed: Iterable[K],
        over: int,
    ) -> None:
        """Tapes cover the ops that run again and what making the dropped values takes."""
        cells = len(tapes.cell_ns)
        for op in self.ops:
            self._row([over + tapes.cell_of[op]], number[op], 0.0)
        for v in needed:
            for cell in tapes.covers[v]:
                self._row([over + cell, at[v]], None, 1.0)
        for cell in range(cells):
            before = [over + cell - 1] if cell else []
            self._row([over + cells + cell, *before], over + cell, 0.0)
        self._row(list(range(over + cells, over + 2 * cells)), None, 1.0)

    def kept(self, solution: Any) -> frozenset[K]:
        """Return the values that a solution keeps and does not make."""
        run = {op for i, op in enumerate(self.ops) if solution[i] > 0.5}
        start = len(self.ops)
        return frozenset(
            v
            for i, v in enumerate(self.values)
            if v in self.maker and solution[start + i] > 0.5 and self.maker[v] not in run
        )

    def _row(self, plus: list[int], minus: int | None, right: float) -> None:
        row = len(self.right_sides)
        self.entries += [(row, column, 1.0) for column in plus]
        if minus is not None:
            self.entries.append((row, minus, -1.0))
        self.right_sides.append(right)

    def _matrix(self) -> Any:
        rows, columns, data = zip(*self.entries, strict=True) if self.entries else ((), (), ())
        shape = (len(self.right_sides), self.size)
        return coo_matrix((data, (rows, columns)), shape=shape).tocsr()


def _reachable(problem: KeepProblem[K]) -> list[int]:
    """Ops that making all needed values anew could run."""
    everything = KeepProblem(problem.reads, problem.makes, problem.cost_ns, problem.needed, {})
    return sorted(evaluate(everything, frozenset()).run)
