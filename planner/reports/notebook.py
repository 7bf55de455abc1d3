"""Plans, profiles and frontiers as output of a notebook cell. Pure."""

from __future__ import annotations

from html import escape

from planner.documents.frontier import Frontier
from planner.documents.plan import Plan
from planner.documents.profile import Profile
from planner.reports.html import frontier_section, lead, segments_html
from planner.reports.html_parts import cards
from planner.reports.style import STYLE


def plan_cell(plan: Plan) -> str:
    """Return a plan as HTML for one cell's output."""
    title = f"<h1>Recomputation plan for {escape(plan.model_class)}</h1>"
    return _cell(title + lead(plan) + cards(plan) + segments_html(plan))


def profile_cell(profile: Profile) -> str:
    """Return a profile as HTML for one cell's output."""
    return _cell(f"<pre>{escape(str(profile))}</pre>")


def frontier_cell(frontier: Frontier) -> str:
    """Return a frontier as HTML for one cell's output."""
    title = f"<h1>Frontier of {escape(frontier.model_class)}</h1>"
    return _cell(title + frontier_section(frontier))


def _cell(body: str) -> str:
    return f'<style>{STYLE}</style><div class="planner cell">{body}</div>'
