"""The predicted memory of a step in the trace event format, which Perfetto and Chrome show.

Ops are slices of a thread as long as they take; live bytes by category are counters, one track for
the plain step and one for the planned one. Pure text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from planner.documents.profile import Profile
from planner.graph.live_bytes import Line, Timeline

_NS_PER_US = 1000


def step_trace(profile: Profile, timeline: Timeline) -> str:
    """Return the trace as JSON text.

    Args:
        profile: the step; its op times place the ops.
        timeline: of the same step.
    """
    times = [op.time_ns / _NS_PER_US for op in profile.ops]
    starts = list(accumulate(times, initial=0.0))
    events: list[dict[str, Any]] = [
        {
            "name": op.name,
            "cat": op.phase,
            "ph": "X",
            "ts": start,
            "dur": time,
            "pid": 0,
            "tid": 0,
            "args": {"op": number},
        }
        for number, (op, start, time) in enumerate(zip(profile.ops, starts, times, strict=False))
    ]
    events += _counters("plain", timeline.plain, starts)
    events += _counters("planned", timeline.planned, starts)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def _counters(name: str, line: Line, starts: list[float]) -> Iterator[dict[str, Any]]:
    shown = {kind: row for kind, row in line.by_kind.items() if any(row)}
    for number in range(len(line.totals)):
        held = {kind: row[number] for kind, row in shown.items()}
        yield {"name": f"{name} memory", "ph": "C", "ts": starts[number], "pid": 0, "args": held}
