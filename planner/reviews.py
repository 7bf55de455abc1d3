"""The public functions over stored plans: `report`, `explain` and `diff`. No torch.

A module of its own, as `planner.sweeps` is: reading what was stored imports no torch.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TypeVar

from planner.analysis.diff import PlanDiff, compare
from planner.analysis.explain import explain as explain_unit
from planner.analysis.explanation import Explanation
from planner.analysis.stored_plan import found_exclusions, graph_for, keep_reasons, timeline
from planner.analysis.sweep import sweep_profile
from planner.documents import Plan, Profile
from planner.documents.files import write_document
from planner.reports.html import report_html
from planner.reports.trace import step_trace

Stored = TypeVar("Stored", Plan, Profile)
PlanLike = Plan | str | PathLike[str]
ProfileLike = Profile | str | PathLike[str]


def report(
    plan: PlanLike,
    path: str | PathLike[str] | None = None,
    *,
    profile: ProfileLike | None = None,
    force: bool = False,
) -> str:
    """Return a plan as one HTML page that needs no network, and write it where a path is given.

    Args:
        plan: a `Plan` or the path of one.
        path: a file for the page; its folder must be there.
        profile: the profile that the plan was made from: adds the memory timeline, the frontier
            and reasons.
        force: whether a file may be overwritten.

    Raises:
        StalePlanError: the profile is of another model.
        PlanFileExistsError: the file is there already.
        DocumentError: a file is no plan, or no profile.
    """
    chosen = _loaded(plan, Plan)
    if profile is None:
        page = report_html(chosen)
    else:
        facts = _loaded(profile, Profile)
        graph = graph_for(chosen, facts)
        frontier = sweep_profile(
            facts, pins=chosen.pins, exclusions=found_exclusions(chosen, facts), graph=graph
        )
        reasons = keep_reasons(graph, chosen)
        page = report_html(chosen, timeline(graph, chosen), frontier, reasons)
    if path is not None:
        write_document(path, page, force=force)
    return page


def trace(plan: PlanLike, path: str | PathLike[str], *, profile: ProfileLike) -> None:
    """Write the predicted memory of a step, plain and planned, for Perfetto or `chrome://tracing`.

    Args:
        plan: a `Plan` or the path of one.
        path: a file, which is overwritten.
        profile: the profile that the plan was made from.

    Raises:
        StalePlanError: the profile is of another model.
        DocumentError: a file is no plan, or no profile.
    """
    chosen, facts = _loaded(plan, Plan), _loaded(profile, Profile)
    found = timeline(graph_for(chosen, facts), chosen)
    write_document(path, step_trace(facts, found), force=True)


def explain(plan: PlanLike, unit: str, *, profile: ProfileLike) -> Explanation:
    """Return what a unit keeps and recomputes, what that costs, and what else would cost.

    Args:
        plan: a `Plan` or the path of one.
        unit: the unit's qualified name; "." for the model.
        profile: the profile that the plan was made from.

    Raises:
        StalePlanError: the profile is of another model.
        UnknownUnitError: the model has no such unit.
        DocumentError: a file is no plan, or no profile.
    """
    chosen = _loaded(plan, Plan)
    return explain_unit(graph_for(chosen, _loaded(profile, Profile)), chosen, unit)


def diff(before: PlanLike, after: PlanLike) -> PlanDiff:
    """Return what differs between two plans, by meaning; `print` shows it.

    Raises:
        DocumentError: a file is no plan.
    """
    return compare(_loaded(before, Plan), _loaded(after, Plan))


def _loaded(given: Stored | str | PathLike[str], kind: type[Stored]) -> Stored:
    return given if isinstance(given, kind) else kind.load(Path(str(given)))
