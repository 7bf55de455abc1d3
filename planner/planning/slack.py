"""Use the room that a measured plan leaves, and tell of the rounds. Called where plans are run.

Where predictions are too high (an allocator that knows better, lives that end sooner), a plan
within the budget leaves room. The next search may take that much more by its own count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.documents import Plan
from planner.units import format_bytes

MORE = 3
"""Further rounds at most."""


def use_room(plan: Plan, search: Callable[[int], Plan], run: Callable[[Plan], int | None]) -> Plan:
    """Return a plan with less overhead that was measured within the budget too, or the given one.

    Args:
        plan: measured, within its budget.
        search: returns the best plan whose predicted peak is within so many bytes.
        run: measures a plan's peak; None where the plan cannot be used.
    """
    predicted = plan.predicted_peak_bytes
    for _ in range(MORE):
        room = predicted - (plan.measured_peak_bytes or predicted)
        if room <= 0 or not plan.segments:
            break
        found = search(plan.budget_bytes + room)
        if found.predicted_overhead_ratio >= plan.predicted_overhead_ratio:
            break
        predicted = found.predicted_peak_bytes
        other = replace(
            found, budget_bytes=plan.budget_bytes, predicted_peak_bytes=predicted - room
        )
        measured = run(other)
        if measured is None or measured > plan.budget_bytes:
            break
        plan = replace(other, measured_peak_bytes=measured)
    return plan


def told(rounds: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Return the note on rounds, each predicted and measured bytes; none where one was enough."""
    if len(rounds) < 2:
        return ()
    each = (f"{format_bytes(p)} and {format_bytes(m)}" for p, m in rounds)
    return (f"peaks predicted and measured, round by round: {', '.join(each)}",)
