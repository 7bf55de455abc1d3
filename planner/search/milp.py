"""Across blocks: choose options by mixed-integer programming, as a check on the dynamic program.

Problem: the same as in `planner.search.chain`. One 0/1 variable per option; the chosen options
form a path from the first to the last block; before each chosen option enough bytes are freed.

    flow conservation at every block boundary
    sum(freed_o * x_o : o stops at or before i) >= sum((need_p - budget) * x_p : p covers [i, j))
    sum(freed_o * x_o) >= top - budget

At most one option of a run [i, j) is chosen, so one row a run is exact.

Optimal: when HiGHS finishes with gap 0 within its time; sizes are scaled to MiB inside, and the
result is checked again in integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from planner.search.chain import Chain, ChainResult
from planner.search.quiet import quiet_stdout
from planner.search.states import Option

_MIB = float(1 << 20)


def solve_milp(chain: Chain, budget_bytes: int, most_seconds: float = 30.0) -> ChainResult | None:
    """Return the cheapest choice within the budget, or None when there is none or none in time."""
    columns = np.array([o.cost_ns / 1e3 for o in chain.options])
    with quiet_stdout():
        result = milp(
            columns,
            constraints=[*_flow(chain), *_room(chain, budget_bytes)],
            integrality=np.ones(columns.size),
            bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0.0, "time_limit": most_seconds},
        )
    if result.x is None:
        return None
    chosen = [o for o, x in zip(chain.options, result.x, strict=True) if x > 0.5]
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


def _flow(chain: Chain) -> list[LinearConstraint]:
    entries = []
    for column, option in enumerate(chain.options):
        entries += [(option.first, column, 1.0), (option.stop, column, -1.0)]
    right = np.zeros(chain.n_blocks + 1)
    right[0], right[-1] = 1.0, -1.0
    matrix = _matrix(entries, chain.n_blocks + 1, len(chain.options))
    return [LinearConstraint(matrix, lb=right, ub=right)]


def _room(chain: Chain, budget_bytes: int) -> list[LinearConstraint]:
    """Enough freed before every run that needs more than the budget, and before the loss."""
    tight: dict[tuple[int, int], list[int]] = {}
    for column, option in enumerate(chain.options):
        if option.need_bytes > budget_bytes:
            tight.setdefault((option.first, option.stop), []).append(column)
    entries = []
    for row, ((first, _), members) in enumerate(tight.items()):
        over = {c: (chain.options[c].need_bytes - budget_bytes) / _MIB for c in members}
        entries += [(row, column, -size) for column, size in over.items()]
        entries += [
            (row, column, option.freed_bytes / _MIB)
            for column, option in enumerate(chain.options)
            if option.stop <= first
        ]
    top = len(tight)
    entries += [(top, c, o.freed_bytes / _MIB) for c, o in enumerate(chain.options)]
    right = np.zeros(top + 1)
    right[top] = (chain.top_bytes - budget_bytes) / _MIB
    return [LinearConstraint(_matrix(entries, top + 1, len(chain.options)), lb=right)]


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> Any:
    row, column, data = zip(*entries, strict=True) if entries else ((), (), ())
    return coo_matrix((data, (row, column)), shape=(rows, columns)).tocsr()
