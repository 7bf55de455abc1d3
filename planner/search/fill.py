"""Within one segment: the best keep set for a given number of bytes, and a bound on it, by HiGHS.

Problem: as in `planner.search.frontier`, but with a limit on the kept bytes instead of a price.
That is a knapsack over closures and NP-hard; the minimum cuts reach only the corners of its lower
hull. A mixed-integer program reaches the points between.

    minimise  sum(cost_i * run_i)
    keep_v + run_maker(v) >= 1        for every wanted value v
    keep_r + run_maker(r) >= run_i    for every value r that op i reads
    sum(size_v * keep_v) <= limit

Optimal: `fill` when HiGHS finishes (gap 0). `least_ns` is a true lower bound: the linear
relaxation, which equals the Lagrangian bound of the cuts because a fixed price leaves a minimum
cut, or the bound that branching has proved by its last node.
Sizes are scaled to MiB inside; the result is rounded and evaluated again in integers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from planner.search.frontier import Choice, KeepProblem, evaluate
from planner.search.quiet import quiet_stdout

K = TypeVar("K", bound=Hashable)
_MIB = float(1 << 20)
_MOST_NODES = 2_000
"""Of branch and bound. A limit in seconds would make results depend on the machine."""
_INFEASIBLE = 2  # scipy's status


def fill(problem: KeepProblem[K], limit_bytes: int) -> Choice[K] | None:
    """Return the choice with the least replay time that keeps at most `limit_bytes`.

    None when there is none, or none was found within the nodes allowed.
    """
    if not problem.wanted:
        return evaluate(problem, frozenset())
    model = _Model(problem, {}, 0)
    with quiet_stdout():
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
    tape: Mapping[K, Sequence[int]] | None = None,
    tape_ns: int = 0,
    nodes: int = 0,
) -> float | None:
    """Return a lower bound in ns on the added time when at most `limit_bytes` are kept.

    Args:
        problem: the segment.
        limit_bytes: the limit.
        tape: for wanted values, the ops that are under a tape when the value is given up. Ops
            that run again are under one as well.
        tape_ns: what an op under a tape costs, however many values need it there.
        nodes: how far to branch to whole numbers; with none, the linear relaxation must do.

    Returns:
        The bound; None when HiGHS finds none, infinity when no choice keeps so little.
    """
    if not problem.wanted:
        return 0.0
    model = _Model(problem, tape or {}, tape_ns)
    with quiet_stdout():
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
    """The program's matrices; variables are `run` by op, then `keep` by value, then tapes by op."""

    def __init__(
        self, problem: KeepProblem[K], tape: Mapping[K, Sequence[int]], tape_ns: int
    ) -> None:
        ops = _reachable(problem)
        number = {op: i for i, op in enumerate(ops)}
        values = dict.fromkeys((*problem.wanted, *(r for op in ops for r in problem.reads[op])))
        self.values = [v for v in values if v in problem.maker or problem.size_bytes.get(v)]
        at = {v: len(ops) + i for i, v in enumerate(self.values)}
        self.ops = ops
        self.maker = problem.maker
        taped = sorted({*ops, *(i for v in problem.wanted for i in tape.get(v, ()))})
        over = {
            op: len(ops) + len(self.values) + i for i, op in enumerate(taped if tape_ns else ())
        }
        self.size = len(ops) + len(self.values) + len(over)
        self.low = np.zeros(self.size)
        self.cost = np.zeros(self.size)
        self.cost[: len(ops)] = [problem.cost_ns[op] / 1e3 for op in ops]
        self.cost[self.size - len(over) :] = tape_ns / 1e3
        self.sizes = np.zeros(self.size)
        self.entries: list[tuple[int, int, float]] = []
        self.right_sides: list[float] = []
        for v in problem.wanted:
            self._row([at[v], number[problem.maker[v]]], None, 1.0)
        for op in ops:
            for read in problem.reads[op]:
                if read in at:
                    makers = [number[problem.maker[read]]] if read in problem.maker else []
                    self._row([at[read], *makers], number[op], 0.0)
        for op in ops if over else ():
            self._row([over[op]], number[op], 0.0)
        for v in problem.wanted if over else ():
            for op in tape.get(v, ()):
                self._row([over[op], at[v]], None, 1.0)
        for v, column in at.items():
            self.sizes[column] = problem.size_bytes.get(v, 0) / _MIB
            if v in problem.banned:
                self._row([], column, 0.0)  # -keep >= 0
        self.right = np.array(self.right_sides)
        self.rows = self._matrix()

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
    """Ops that making all wanted values anew could run."""
    everything = KeepProblem(problem.reads, problem.makes, problem.cost_ns, problem.wanted, {})
    return sorted(evaluate(everything, frozenset()).run)
