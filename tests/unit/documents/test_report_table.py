"""What print shows of plans, profiles and verifications."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from document_samples import EMPTY_PLAN, MIB, PLAN, PROFILE, block_segment

from planner.documents import Boundary, Plan, Segment, StepInfo
from planner.documents.printing.segments import runs, segment_label
from planner.verifier.verification_text import verification_table


def test_a_plan_in_full() -> None:
    assert str(PLAN).splitlines() == [
        "Plan for Net: optimal, found by dynamic program",
        "  made for        args[0] [8, 128] int64, kwargs['mask'] [] bool; cpu; autocast bfloat16; "
        "train mode; AdamW",
        "  budget          300.0 MiB",
        "  plain peak      400.0 MiB",
        "  predicted peak  290.0 MiB (10.0 MiB below the budget)",
        "  measured peak   291.0 MiB (9.0 MiB below the budget)",
        "  smallest peak   200.0 MiB",
        "  overhead        12.5% of the plain step",
        "  still to save   nothing, which is proven",
        "",
        "  segment                                     "
        "    saved     kept  given up  replayed ops  recompute",
        "  h.0 .. h.1 (2 alike)                        "
        "  8.0 MiB  2.0 MiB   6.0 MiB            20    3.10 ms",
        "  . .. tail (call 1) in 3 parts by checkpoint "
        "  2.0 MiB      0 B   2.0 MiB             3       0 ns",
        "  total                                       "
        " 10.0 MiB  2.0 MiB   8.0 MiB            23    3.10 ms",
        "",
        "Never recomputed:",
        "  norm: writes its statistics",
        "",
        "Pinned by you:",
        "  head: always saved",
        "  h.0: always recomputed",
        "",
        "Notes:",
        "  agreed in review",
    ]


def test_an_empty_plan_says_that_nothing_is_recomputed() -> None:
    shown = str(EMPTY_PLAN)
    assert "The plain step already fits the budget: nothing is recomputed." in shown
    assert "segment" not in shown and "Never recomputed" not in shown


def test_an_empty_plan_over_the_budget_does_not_claim_to_fit() -> None:
    shown = str(replace(EMPTY_PLAN, budget_bytes=1, predicted_peak_bytes=3))
    assert "fits" not in shown and "Nothing is recomputed." in shown
    assert "3 B (2 B ABOVE the budget)" in shown


def test_a_plan_never_run_says_so() -> None:
    assert "not measured" in str(replace(PLAN, measured_peak_bytes=None))


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([f"h.{i}" for i in range(12)], ["h.0 .. h.11 (12 alike)"]),
        (["h.0", "h.2"], ["h.0 .. h.2 (2 alike)"]),
        (["h.0"], ["h.0"]),
        (["h.0", "g.1"], ["h.0", "g.1"]),
        (["h.0", "h.0.mlp"], ["h.0", "h.0.mlp"]),
        (["h.0", "h.x"], ["h.0", "h.x"]),
        # One number at a time, and always the same one.
        (
            ["s.0.b.0", "s.0.b.1", "s.1.b.0", "s.1.b.1"],
            ["s.0.b.0 .. s.0.b.1 (2 alike)", "s.1.b.0 .. s.1.b.1 (2 alike)"],
        ),
    ],
)
def test_alike_segments_share_a_line(units: list[str], expected: list[str]) -> None:
    plan = replace(PLAN, segments=tuple(map(block_segment, units)))
    assert labels(plan) == expected


def labels(plan: Plan) -> list[str]:
    """Return the first column of the table of segments."""
    lines = str(plan).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  segment "))
    rows = lines[start + 1 : lines.index("", start)]
    names = [re.split(r" {2,}", row.strip())[0] for row in rows]
    return [name for name in names if name != "total"]


@pytest.mark.parametrize(
    "other",
    [
        replace(block_segment("h.1"), saved_bytes=1),
        replace(block_segment("h.1"), kept_bytes=1),
        replace(block_segment("h.1"), keep=()),
        replace(block_segment("h.1"), runtime="checkpoint"),
        replace(block_segment("h.1"), replayed_ops=1),
        replace(block_segment("h.1"), end=Boundary("h.1", 0, "enter")),
        replace(block_segment("h.1"), end=Boundary("h.2", 1, "exit")),
    ],
)
def test_segments_that_differ_in_what_they_do_do_not(other: Segment) -> None:
    assert len(runs([block_segment("h.0"), other])) == 2


def test_groups_of_units_and_calls_count_too() -> None:
    pairs = [
        replace(
            block_segment(""),
            start=Boundary(f"h.{i}", 0, "enter"),
            end=Boundary(f"h.{i + 1}", 0, "exit"),
        )
        for i in (0, 2, 4)
    ]
    assert [len(run) for run in runs(pairs)] == [3]
    assert segment_label(pairs[0], pairs[-1]) == "h.0 .. h.5"
    calls = [
        replace(
            block_segment(""),
            start=Boundary("cell", i, "enter"),
            end=Boundary("cell", i, "exit"),
        )
        for i in range(4)
    ]
    assert [len(run) for run in runs(calls)] == [4]


def test_edges_that_are_not_the_usual_ones_are_spelt_out() -> None:
    segment = Segment(Boundary("a", 0, "exit"), Boundary("b", 2, "enter"))
    assert segment_label(segment) == "after a .. before b (call 2)"


def test_what_is_kept_beyond_what_was_saved_gives_up_nothing() -> None:
    segment = replace(block_segment("h.0"), saved_bytes=MIB, kept_bytes=2 * MIB)
    assert " 0 B " in str(replace(PLAN, segments=(segment,)))


def test_control_characters_in_a_file_do_not_reach_the_terminal() -> None:
    shown = str(replace(PLAN, model_class="N\x1b[2J", notes=("a\nb",), solver="\u202e"))
    assert "\x1b" not in shown and "\u202e" not in shown
    assert "N\\x1b[2J" in shown and "a\\nb" in shown


def test_many_inputs_are_counted() -> None:
    step = replace(PLAN.step, inputs=PLAN.step.inputs * 4, root_calls=3)
    shown = str(replace(PLAN, step=step))
    assert "and 4 more" in shown and "3 calls of the model" in shown


def test_a_profile_in_full() -> None:
    assert str(PROFILE).splitlines() == [
        "Profile of Net",
        "  made for      args[0] [8, 128] int64, kwargs['mask'] [] bool; cpu; autocast bfloat16; "
        "train mode; AdamW",
        "  plain peak    9.0 MiB",
        "  step time     4.00 us",
        "  forward time  1.50 us",
        "  recorded      3 ops (2 in forward), 2 unit calls, 2 saved tensors, 4 storages",
        "",
        "  alive at the peak     size",
        "  parameter          3.0 MiB",
        "  gradient           3.0 MiB",
        "  input              1.0 MiB",
        "  activation         2.0 MiB",
        "",
        "  unit  saved for backward",
        "  h.0              2.0 MiB",
        "",
        "Never recomputed:",
        "  norm: writes its statistics",
    ]


def test_a_profile_of_nothing() -> None:
    nothing = replace(
        PROFILE, units=(), ops=(), values=(), storages=(), saved=(), excluded=(), step=StepInfo()
    )
    assert str(nothing).startswith("Profile of Net\n")


@dataclass
class Checked:
    """Stands in for a verification, which would need torch."""

    ok: bool = True
    measured_peak_bytes: int = 290 * MIB
    plain_peak_bytes: int | None = 400 * MIB
    reserved_bytes: int | None = None
    budget_bytes: int = 300 * MIB
    compared: Literal["steps", "replays"] = "steps"
    gradients_equal: bool = True
    outputs_equal: bool = True
    buffers_equal: bool = True
    forward_runs: dict[str, int] = field(default_factory=lambda: {"": 1, "h.0": 1})
    replayed_ops: int = 1234
    overhead_ratio: float | None = 0.05


def test_a_verification_that_passed() -> None:
    assert verification_table(Checked()).splitlines() == [
        "Verification: passed",
        "  budget         300.0 MiB",
        "  plain peak     400.0 MiB",
        "  measured peak  290.0 MiB (10.0 MiB below the budget)",
        "  gradients      equal bit for bit",
        "  outputs        equal bit for bit",
        "  buffers        equal bit for bit",
        "  forward runs   2 units, each once",
        "  replayed ops   1,234",
        "  overhead       5.0% of the plain step",
    ]


def test_a_verification_without_a_plain_step() -> None:
    found = Checked(
        plain_peak_bytes=None, reserved_bytes=310 * MIB, overhead_ratio=None, compared="replays"
    )
    assert verification_table(found).splitlines()[2:6] == [
        "  plain peak     none: it ran out of memory",
        "  measured peak  290.0 MiB (10.0 MiB below the budget)",
        "  reserved       310.0 MiB (20.0 MiB of it unused, in pieces)",
        "  replays        equal bit for bit",
    ]
    assert "overhead" not in verification_table(found)


def test_a_verification_of_steps_that_differ_says_so() -> None:
    shown = verification_table(Checked(compared="replays", gradients_equal=False)).splitlines()
    assert shown[4:6] == [
        "  plain steps    differ from each other, so replays are compared",
        "  replays        DIFFERENT",
    ]


def test_a_verification_that_failed_says_what() -> None:
    shown = verification_table(
        Checked(
            ok=False,
            measured_peak_bytes=301 * MIB,
            buffers_equal=False,
            forward_runs={"": 1, "bn": 2},
        )
    )
    assert shown.startswith("Verification: FAILED")
    assert "301.0 MiB (1.0 MiB ABOVE the budget)" in shown
    assert "buffers        DIFFERENT" in shown
    assert "2 units; bn 2 times" in shown
    assert shown.count("equal bit for bit") == 2
