"""Pieces of HTML that the reports share: cards of figures, tables, lists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from planner.documents.plan import Plan
from planner.units import format_bytes, format_percent


def cards(plan: Plan) -> str:
    """Return the figures of a plan, each with its exact value in the page's data attributes."""
    measured = plan.measured_peak_bytes
    found = [
        _bytes_card("budget", "budget_bytes", plan.budget_bytes),
        _bytes_card("plain peak", "plain_peak_bytes", plan.plain_peak_bytes),
        _bytes_card(
            "predicted peak",
            "predicted_peak_bytes",
            plan.predicted_peak_bytes,
            _slack(plan.predicted_peak_bytes, plan.budget_bytes),
        ),
    ]
    if measured is not None:
        slack = _slack(measured, plan.budget_bytes)
        found.append(_bytes_card("measured peak", "measured_peak_bytes", measured, slack))
    ratio = plan.predicted_overhead_ratio
    found.append(_card("overhead", "predicted_overhead_ratio", ratio, format_percent(ratio),
                       "of the plain step, predicted"))  # fmt: skip
    if plan.floor_bytes is not None:
        found.append(_bytes_card("smallest peak", "floor_bytes", plan.floor_bytes))
    if plan.gap is not None:
        most = f"at most {format_percent(plan.gap)}" if plan.gap else "nothing"
        found.append(
            _card("could still be saved", "gap", plan.gap, most, "of the overhead; proven")
        )
    return f'<dl class="cards">{"".join(found)}</dl>'


def _bytes_card(name: str, field: str, size: int, note: str = "") -> str:
    return _card(name, field, size, format_bytes(size), note)


def _card(name: str, field: str, value: float, text: str, note: str = "") -> str:
    small = f"<small>{note}</small>" if note else ""
    return (
        f'<div><dt>{escape(name)}</dt><dd data-field="{field}" data-value="{value}">'
        f"{escape(text)}{small}</dd></div>"
    )


def _slack(peak_bytes: int, budget_bytes: int) -> str:
    slack = budget_bytes - peak_bytes
    css, side = ("good", "below") if slack >= 0 else ("bad", "ABOVE")
    return f'<span class="{css}">{format_bytes(abs(slack))} {side} the budget</span>'


def table(
    name: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    foot: Sequence[str] = (),
    css: str = "",
) -> str:
    """Return a table that scrolls by itself where it is too wide, by keyboard as well."""
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    last = f"<tfoot><tr>{_row(foot)}</tr></tfoot>" if foot else ""
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    label = escape(name)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f'<table class="{css}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>{last}'
        "</table></div>"
    )


def _row(cells: Sequence[str]) -> str:
    first, *rest = cells
    return f'<th scope="row">{escape(first)}</th>' + "".join(
        f"<td>{escape(text)}</td>" for text in rest
    )


def items(title: str, lines: Iterable[str]) -> str:
    """Return a titled list, or nothing for no lines."""
    body = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<section><h2>{escape(title)}</h2><ul>{body}</ul></section>" if body else ""
