"""The report of a plan: one HTML file that needs no network. Pure string building.

Called by `planner report` and by notebooks. Every text from a document is escaped. Figures that
stand in the plan carry `data-field` and `data-value`, so that the page can be checked against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from planner.documents.frontier import Frontier
from planner.documents.plan import Plan
from planner.documents.printing.frontier import HAND_HEAD, hand_rows, knee_sentence, thinned
from planner.documents.printing.rows import Row, rows_of, totals
from planner.graph.fate import Kept
from planner.graph.live_bytes import Holding, Line, Timeline
from planner.reports.frontier_chart import frontier_chart
from planner.reports.html_parts import cards, items, table
from planner.reports.style import STYLE
from planner.reports.svg import chart_html
from planner.reports.timeline import timeline_charts
from planner.units import format_bytes, format_ns, format_percent

MOST_HOLDINGS = 20
"""Most rows of what is in the peak."""
MOST_KEPT = 40
"""Most kept values listed for a row."""


def report_html(
    plan: Plan,
    timeline: Timeline | None = None,
    frontier: Frontier | None = None,
    kept: Sequence[Sequence[Kept]] = (),
) -> str:
    """Return the report of a plan as a complete HTML page.

    Args:
        plan: the plan.
        timeline: its memory over the step, if a profile was given.
        frontier: the frontier of the same profile.
        kept: for each segment, what it keeps and why.
    """
    name = escape(plan.model_class)
    body = "".join(
        [
            f"<h1>Recomputation plan for {name}</h1>{lead(plan)}{cards(plan)}",
            _timeline(timeline),
            frontier_section(frontier, plan),
            segments_html(plan, kept),
            _left_alone(plan),
            _provenance(plan),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Recomputation plan for {name}</title><style>{STYLE}</style></head>"
        f'<body class="planner"><main>{body}</main></body></html>\n'
    )


def lead(plan: Plan) -> str:
    """Return the plan in a sentence."""
    plain, planned = plan.plain_peak_bytes, plan.predicted_peak_bytes
    if not plan.segments:
        return '<p class="lead">Nothing is recomputed: the step runs unchanged.</p>'
    less = format_percent((plain - planned) / plain) if plain else "0%"
    return (
        f'<p class="lead">The step peaks at {format_bytes(planned)} instead of '
        f"{format_bytes(plain)} ({less} less) for "
        f"{format_percent(plan.predicted_overhead_ratio)} more time (predicted).</p>"
    )


def _timeline(timeline: Timeline | None) -> str:
    if timeline is None:
        return (
            '<section><h2>Memory over the step</h2><p class="soft">No profile was given. With '
            "<code>planner report PLAN --profile FILE</code> the page also shows the memory op by "
            "op, what is in the peak, and what other budgets would cost.</p></section>"
        )
    charts = "".join(chart_html(chart) for chart in timeline_charts(timeline))
    plain, planned = timeline.plain.at_peak(), timeline.planned.at_peak()
    rows = [
        (kind, format_bytes(plain.get(kind, 0)), format_bytes(planned.get(kind, 0)))
        for kind in timeline.plain.by_kind
        if kind in plain or kind in planned
    ]
    peaks = [format_bytes(line.peak_bytes) for line in (timeline.plain, timeline.planned)]
    figures = table("What is live at the peak", ("what", "plain", "planned"), rows,
                    ("total", *peaks))  # fmt: skip
    note = (
        "Predicted live bytes at each op of the step. A replay counts at the op before which it "
        "runs."
    )
    return (
        f'<section><h2>Memory over the step</h2><p class="soft">{note}</p>{charts}'
        f"<details><summary>The peaks as a table</summary>{figures}</details></section>"
        f"{_in_the_peak(timeline.planned)}"
    )


def _in_the_peak(line: Line) -> str:
    """Return what is live at the planned peak, tensor by tensor, alike ones together."""
    shown, rest = line.holdings[:MOST_HOLDINGS], line.holdings[MOST_HOLDINGS:]
    rows = [
        (
            _maker(held),
            format_bytes(held.bytes),
            format_percent(held.bytes / max(1, line.peak_bytes)),
            str(held.count or ""),
        )
        for held in shown
    ]
    if rest:
        size = sum(held.bytes for held in rest)
        share = format_percent(size / max(1, line.peak_bytes))
        rows.append((f"{len(rest)} more", format_bytes(size), share, ""))
    head = ("who made it, and why it is there", "size", "of the peak", "tensors")
    where = f" It is reached in {escape(line.peak_unit)}." if line.peak_unit else ""
    return (
        f'<section><h2>What is in the peak</h2><p class="soft">Under the plan, at '
        f"{format_bytes(line.peak_bytes)}.{where}</p>{table('In the peak', head, rows)}</section>"
    )


def _maker(held: Holding) -> str:
    """Return who made some tensors, and why they are there."""
    if held.kind == "replayed values":
        return "replays, for the backward that runs just now"
    if not held.op:
        return f"{held.kind}, there all step long"
    op = held.op.removeprefix("aten.").removesuffix(".default")
    return f"{held.maker or 'the step'}: {op}, {_stays_for(held)}"


def _stays_for(held: Holding) -> str:
    if held.kind == "temporaries":
        return "in use just now"
    if held.kind != "kept activations":
        return held.kind
    own = held.saved_by == held.maker
    return (
        "saved for its backward"
        if own
        else f"saved for the backward of {held.saved_by or 'the step'}"
    )


def frontier_section(frontier: Frontier | None, plan: Plan | None = None) -> str:
    """Return the frontier as a chart and, folded in, as tables."""
    if frontier is None or len(frontier.points) < 2:
        return ""
    points = [
        (format_bytes(p.budget_bytes), format_bytes(p.peak_bytes),
         format_percent(p.overhead_ratio), str(p.segments))
        for p in thinned(frontier.points, 11)
    ]  # fmt: skip
    head = ("budget", "predicted peak", "overhead", "segments")
    tables = table("Frontier", head, points)
    tables += table("Placed by hand", HAND_HEAD, hand_rows(frontier))
    return (
        f"<section><h2>What other budgets would cost</h2><p>{escape(knee_sentence(frontier))}</p>"
        f"{chart_html(frontier_chart(frontier, plan))}"
        "<details><summary>The frontier as a table</summary>"
        f"{tables}</details>"
        "</section>"
    )


def segments_html(plan: Plan, kept: Sequence[Sequence[Kept]] = ()) -> str:
    """Return the segments as a table, with what they keep below it."""
    rows = rows_of(plan.segments)
    if not rows:
        return ""
    head = ("segment", "saved", "kept", "given up", "replayed ops", "recompute", "per MiB")
    body = [_cells(row) for row in rows]
    figures = table("Segments", head, body, _cells(totals(rows)) if len(rows) > 1 else ())
    reasons = "".join(_keeps(row, kept) for row in rows)
    note = (
        "Within a segment every saved tensor is dropped, and recomputed when backward needs it, "
        "except those that are kept. Equal blocks share a row."
    )
    return (
        f'<section><h2>Segments</h2><p class="soft">{note}</p>{figures}'
        f"<h3>What they keep, and why</h3>{reasons}</section>"
    )


def _cells(row: Row) -> tuple[str, ...]:
    label = f"{row.label} ({len(row.segments)} alike)" if len(row.segments) > 1 else row.label
    segment = row.segments[0]
    if row.label == "total":
        label = "total"
    else:
        label += f", in {len(segment.cuts) + 1} parts" if segment.cuts else ""
        label += f", by {segment.runtime}" if segment.runtime != "replay" else ""
    return (
        label,
        format_bytes(row.saved_bytes),
        format_bytes(row.kept_bytes),
        format_bytes(row.given_up_bytes),
        f"{row.replayed_ops:,}",
        format_ns(row.recompute_ns),
        format_ns(row.ns_per_mib),
    )


def _keeps(row: Row, kept: Sequence[Sequence[Kept]]) -> str:
    segment = row.segments[0]
    if not segment.keep:
        return f'<p class="soft">{escape(row.label)}: nothing.</p>'
    reasons = {k.address: k for k in kept[row.first]} if row.first < len(kept) else {}
    lines = [_reason(address, reasons.get(address)) for address in segment.keep[:MOST_KEPT]]
    if len(segment.keep) > MOST_KEPT:
        lines.append(f"<li>and {len(segment.keep) - MOST_KEPT} more</li>")
    alike = " (the first of them)" if len(row.segments) > 1 else ""
    plural = "s" * (len(segment.keep) != 1)
    return (
        f"<details><summary>{escape(row.label)}: {len(segment.keep)} value{plural}{alike}"
        f'</summary><ul class="why">{"".join(lines)}</ul></details>'
    )


def _reason(address: str, kept: Kept | None) -> str:
    if kept is None:
        return f"<li><code>{escape(address)}</code></li>"
    size = format_bytes(kept.size_bytes)
    return f"<li><code>{escape(address)}</code> {size}: {escape(kept.why)}</li>"


def _left_alone(plan: Plan) -> str:
    parts: list[tuple[str, Iterable[str]]] = [
        ("Never recomputed", (f"{e.unit or '.'}: {e.reason}" for e in plan.exclusions)),
        (
            "Pinned by you",
            [
                *(f"{unit or '.'}: always saved" for unit in plan.pins.save),
                *(f"{unit or '.'}: always recomputed" for unit in plan.pins.recompute),
                *(f"{op}: never replayed" for op in plan.pins.never),
            ],
        ),
        ("Notes", plan.notes),
    ]
    return "".join(items(title, lines) for title, lines in parts)


def _provenance(plan: Plan) -> str:
    step = plan.step
    inputs = "; ".join(f"{t.path} {list(t.shape)} {t.dtype}" for t in step.inputs) or "not recorded"
    rows = [
        ("model", plan.model_class),
        ("fingerprint", plan.fingerprint),
        ("inputs", inputs),
        ("device", step.device),
        ("autocast", step.autocast or "off"),
        ("optimizer", step.optimizer or "none"),
        ("calls of the model in a step", str(step.root_calls)),
        ("found by", plan.solver),
        ("status", plan.status),
        ("file format", f"version {plan.schema_version}"),
    ]
    body = table("Provenance", ("what", "value"), rows, css="words")
    return f"<section><h2>Where this comes from</h2>{body}</section>"
