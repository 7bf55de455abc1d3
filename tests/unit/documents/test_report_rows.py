"""Segments as rows of a report: those alike in one, named by what both ends share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.documents import Boundary, Segment
from planner.documents.printing.alike import collapse
from planner.documents.printing.rows import rows_of, short_label, totals


def test_segments_that_are_alike_share_a_row() -> None:
    def block(number: int) -> Segment:
        unit = f"net.h.{number}"
        ends = Boundary(f"{unit}.ln", 0, "enter"), Boundary(f"{unit}.mlp.fc", 0, "exit")
        return Segment(*ends, keep=(f"{unit}.ln/add/0",), saved_bytes=8, kept_bytes=2)

    odd = replace(block(3), kept_bytes=4)
    rows = rows_of([block(0), block(1), odd, block(4)])
    assert [(r.label, len(r.segments), r.given_up_bytes) for r in rows] == [
        ("net.h.{0-1,4}: ln .. mlp.fc", 3, 18),
        ("net.h.3: ln .. mlp.fc", 1, 4),
    ]


@pytest.mark.parametrize(
    ("start", "end", "label"),
    [
        (("h.0", "enter"), ("h.0", "exit"), "h.0"),
        (("", "enter"), ("", "exit"), "."),
        (("h.0", "enter"), ("h.2", "exit"), "h: 0 .. 2"),
        (("h.0", "enter"), ("h.0.fc", "exit"), "h.0: start .. fc"),
        (("h.0.a", "exit"), ("h.0.b", "enter"), "h.0: after a .. before b"),
        (("h.0.a", "exit"), ("h.0", "exit"), "h.0: after a .. end"),
        (("a", "enter"), ("b", "exit"), "a .. b"),
    ],
)
def test_a_short_label_names_both_ends(
    start: tuple[str, str], end: tuple[str, str], label: str
) -> None:
    segment = Segment(Boundary(start[0], 0, start[1]), Boundary(end[0], 0, end[1]))
    assert short_label(segment) == label


def test_a_total_counts_every_row() -> None:
    ends = Boundary("h.0", 0, "enter"), Boundary("h.0", 0, "exit")
    one = Segment(*ends, saved_bytes=4 << 20, kept_bytes=2 << 20, recompute_ns=6, replayed_ops=3)
    total = totals(rows_of([one, replace(one, saved_bytes=3 << 20)]))
    assert (total.given_up_bytes, total.replayed_ops, total.recompute_ns) == (3 << 20, 6, 12)
    assert total.ns_per_mib == 4
    assert totals([]).ns_per_mib == 0


def test_only_whole_parts_of_a_name_are_layer_numbers() -> None:
    rows = [("conv1.w", "x"), ("conv2.w", "x"), ("h.1", "x"), ("h.2", "x"), ("h.2.b.1", "y")]
    assert collapse(rows) == [
        ("conv1.w", "x"),
        ("conv2.w", "x"),
        ("h.{1-2}", "x"),
        ("h.2.b.1", "y"),
    ]
