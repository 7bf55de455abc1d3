"""Across blocks: choose options by mixed-integer programming, as a check on the dynamic program.

Problem: the same as in `dynamic_program`. One 0/1 variable per option; the chosen options
form a path from the first to the last block; before each chosen option enough bytes are freed.

    flow conservation at every block boundary
    freed_i = freed_i-1 + sum(freed_o * x_o : o stops at i)
    freed_i >= sum((need_p - budget) * x_p : p covers [i, j))    for every run [i, j)
    freed_n >= top - budget

At most one option of a run is chosen, so one row a run is exact.

Optimal: when HiGHS finishes with gap 0 within its time; sizes are scaled to MiB inside, and the
result is checked again in integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from planner.search.chain.dynamic_program import Chain, ChainResult
from planner.search.chain.states import Option
from planner.search.native_stdout import suppressed_stdout

_MIB = float(1 << 20)


def solve_milp(chain: Chain, budget_bytes: int, most_seconds: float = 20.0) -> ChainResult | None:
    """Return the cheapest choice within the budget, or None when there is none or none in time."""
    count = len(chain.options)
    size = count + chain.n_blocks + 1  # an option each, then the bytes freed before each block
    cost = np.zeros(size)
    cost[:count] = [o.cost_ns / 1e3 for o in chain.options]
    high = np.ones(size)
    high[count:] = np.inf
    with suppressed_stdout():
        result = milp(
            cost,
            constraints=[_flow(chain, size), _freed(chain, size), _room(chain, budget_bytes, size)],
            integrality=np.arange(size) < count,
            bounds=Bounds(np.zeros(size), high),
            options={"mip_rel_gap": 0.0, "time_limit": most_seconds},
        )
    if result.x is None:
        return None
    chosen = [o for o, x in zip(chain.options, result.x, strict=False) if x > 0.5]
    chosen.sort(key=lambda o: o.first)
    if not fits(chain, chosen, budget_bytes):
        return None
    return ChainResult(tuple(chosen), sum(o.cost_ns for o in chosen), result.status == 0)


def fits(chain: Chain, options: list[Option], budget_bytes: int) -> bool:
    """Return whether options are a path through all blocks and fit the budget, in integers."""
    freed, block = 0, 0
    for option in options:
        if option.first != block or freed < option.need_bytes - budget_bytes:
            return False
        freed += option.freed_bytes
        block = option.stop
    return block == chain.n_blocks and freed >= chain.top_bytes - budget_bytes


def _flow(chain: Chain, size: int) -> LinearConstraint:
    rows = _Rows(size)
    for column, option in enumerate(chain.options):
        rows.entries += [(option.first, column, 1.0), (option.stop, column, -1.0)]
    right = np.zeros(chain.n_blocks + 1)
    right[0], right[-1] = 1.0, -1.0
    return LinearConstraint(rows.matrix(chain.n_blocks + 1), lb=right, ub=right)


def _freed(chain: Chain, size: int) -> LinearConstraint:
    """What the freed bytes are: nothing before the first block, then what its options free."""
    count, rows = len(chain.options), _Rows(size)
    for block in range(chain.n_blocks + 1):
        rows.entries.append((block, count + block, 1.0))
        if block:
            rows.entries.append((block, count + block - 1, -1.0))
    for column, option in enumerate(chain.options):
        rows.entries.append((option.stop, column, -option.freed_bytes / _MIB))
    return LinearConstraint(rows.matrix(chain.n_blocks + 1), lb=0.0, ub=0.0)


def _room(chain: Chain, budget_bytes: int, size: int) -> LinearConstraint:
    """Enough freed before every run that needs more than the budget, and before the loss."""
    tight: dict[tuple[int, int], list[int]] = {}
    for column, option in enumerate(chain.options):
        if option.need_bytes > budget_bytes:
            tight.setdefault((option.first, option.stop), []).append(column)
    count, rows = len(chain.options), _Rows(size)
    for row, ((first, _), members) in enumerate(tight.items()):
        rows.entries.append((row, count + first, 1.0))
        for column in members:
            over = (chain.options[column].need_bytes - budget_bytes) / _MIB
            rows.entries.append((row, column, -over))
    rows.entries.append((len(tight), count + chain.n_blocks, 1.0))
    right = np.zeros(len(tight) + 1)
    right[-1] = (chain.top_bytes - budget_bytes) / _MIB
    return LinearConstraint(rows.matrix(len(tight) + 1), lb=right)


class _Rows:
    """A sparse matrix in the making."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.entries: list[tuple[int, int, float]] = []

    def matrix(self, rows: int) -> Any:
        row, column, data = zip(*self.entries, strict=True) if self.entries else ((), (), ())
        return coo_matrix((data, (row, column)), shape=(rows, self.columns)).tocsr()
