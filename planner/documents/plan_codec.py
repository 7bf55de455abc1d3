"""`Plan` to JSON and back.

The file is made to be reviewed: keys in a fixed order, two-space indent, a newline at the end,
nothing in it that depends on when or where it was written.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from planner.documents.plan import (
    EDGES,
    RUNTIMES,
    STATUSES,
    Boundary,
    Cut,
    Pins,
    Plan,
    Segment,
    UnitPrint,
)
from planner.documents.reader import Node
from planner.documents.step_codec import names, read_exclusions, read_step
from planner.documents.text import PLAN_KIND, expect, parse, render_error
from planner.units import MAX_BYTES

# The order of the file: what it is for, what it promises, what it does, what the user added.
_KEYS = (
    "kind",
    "schema_version",
    "model_class",
    "fingerprint",
    "step",
    "budget_bytes",
    "predicted_peak_bytes",
    "predicted_overhead_ratio",
    "plain_peak_bytes",
    "floor_bytes",
    "solver",
    "status",
    "gap",
    "measured_peak_bytes",
    "segments",
    "exclusions",
    "pins",
    "notes",
    "units",
)
_SEGMENT = names(Segment)
_BOUNDARY = names(Boundary)
_CUT = names(Cut)
_PINS = names(Pins)
_UNIT_PRINT = names(UnitPrint)


def plan_to_json(plan: Plan) -> str:
    """Return the plan's JSON text.

    Raises:
        DocumentError: it holds something that `plan_from_json` would refuse.
    """
    content = {"kind": PLAN_KIND, **asdict(plan)}
    try:
        ordered = {key: content[key] for key in _KEYS}
        text = json.dumps(ordered, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise render_error("the plan", error) from error
    plan_from_json(text, "the plan to be written")
    return text


def plan_from_json(text: str, source: str = "") -> Plan:
    """Return the plan that a JSON text holds.

    Args:
        text: the document.
        source: the file's name, for messages.

    Raises:
        DocumentError: with the path of the field at fault.
    """
    return read_plan(parse(text, source))


def read_plan(top: Node) -> Plan:
    """Read a plan from the top of a parsed document."""
    expect(top, PLAN_KIND)
    at = top.record(_KEYS)
    return Plan(
        schema_version=at["schema_version"].integer(),
        model_class=at["model_class"].text(),
        fingerprint=at["fingerprint"].text(),
        step=read_step(at["step"]),
        budget_bytes=at["budget_bytes"].integer(),
        predicted_peak_bytes=at["predicted_peak_bytes"].integer(),
        predicted_overhead_ratio=at["predicted_overhead_ratio"].ratio(),
        plain_peak_bytes=at["plain_peak_bytes"].integer(),
        floor_bytes=at["floor_bytes"].integer_or_none(),
        solver=at["solver"].text(),
        status=at["status"].choice(STATUSES),
        gap=at["gap"].ratio_or_none(),
        measured_peak_bytes=at["measured_peak_bytes"].integer_or_none(),
        segments=tuple(_segment(item) for item in at["segments"].items()),
        exclusions=read_exclusions(at["exclusions"]),
        pins=_pins(at["pins"]),
        notes=at["notes"].texts(),
        units=tuple(_unit_print(item) for item in at["units"].items()),
    )


def _segment(node: Node) -> Segment:
    at = node.record(_SEGMENT)
    return Segment(
        start=_boundary(at["start"]),
        end=_boundary(at["end"]),
        runtime=at["runtime"].choice(RUNTIMES),
        keep=at["keep"].texts(),
        cuts=tuple(_cut(item) for item in at["cuts"].items()),
        saved_bytes=at["saved_bytes"].integer(),
        kept_bytes=at["kept_bytes"].integer(),
        recompute_ns=at["recompute_ns"].integer(),
        replayed_ops=at["replayed_ops"].integer(),
    )


def _boundary(node: Node) -> Boundary:
    at = node.record(_BOUNDARY)
    return Boundary(at["unit"].text(), at["call"].integer(-1), at["edge"].choice(EDGES))


def _cut(node: Node) -> Cut:
    at = node.record(_CUT)
    depth = at["depth"].integer(-MAX_BYTES - 1)
    if not depth:
        at["depth"].fail("a depth other than 0")
    return Cut(at["at"].text(), depth)


def _pins(node: Node) -> Pins:
    at = node.record(_PINS)
    return Pins(at["save"].texts(), at["recompute"].texts())


def _unit_print(node: Node) -> UnitPrint:
    at = node.record(_UNIT_PRINT)
    return UnitPrint(at["units"].text(), at["count"].integer(1), at["fingerprint"].text())
