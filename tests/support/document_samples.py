"""A plan and a profile with something in every field, for the tests of documents and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]

import planner
from planner.documents import (
    Boundary,
    Cut,
    Exclusion,
    Op,
    Pins,
    Plan,
    Profile,
    SavedTensor,
    Segment,
    StepInfo,
    Storage,
    TensorSpec,
    UnitCall,
    Value,
)

MIB = 1024**2

STEP = StepInfo(
    inputs=(TensorSpec("args[0]", (8, 128), "int64"), TensorSpec("kwargs['mask']", (), "bool")),
    device="cpu",
    autocast="bfloat16",
    optimizer="AdamW",
    root_calls=1,
)


def block_segment(unit: str, recompute_ns: int = 1_500_000) -> Segment:
    """Return a segment over one unit that gives up 3 of 4 MiB."""
    return Segment(
        start=Boundary(unit, 0, "enter"),
        end=Boundary(unit, 0, "exit"),
        runtime="replay",
        keep=(f"{unit}.mlp/addmm/0", f"{unit}.attn/native_dropout/1#1"),
        cuts=(),
        saved_bytes=4 * MIB,
        kept_bytes=1 * MIB,
        recompute_ns=recompute_ns,
        replayed_ops=10,
    )


PLAN = Plan(
    model_class="Net",
    fingerprint="0123abcd",
    step=STEP,
    budget_bytes=300 * MIB,
    predicted_peak_bytes=290 * MIB,
    predicted_overhead_ratio=0.125,
    plain_peak_bytes=400 * MIB,
    floor_bytes=200 * MIB,
    solver="dynamic program",
    status="optimal",
    gap=0.0,
    measured_peak_bytes=291 * MIB,
    segments=(
        block_segment("h.0"),
        block_segment("h.1", recompute_ns=1_600_000),
        Segment(
            start=Boundary("", 0, "enter"),
            end=Boundary("tail", 1, "exit"),
            runtime="checkpoint",
            cuts=(Cut("./mul.Tensor/0", 1), Cut("tail/relu/0", 2)),
            saved_bytes=2 * MIB,
            replayed_ops=3,
        ),
    ),
    exclusions=(Exclusion("norm", "writes its statistics"),),
    pins=Pins(save=("head",), recompute=("h.0",)),
    notes=("agreed in review",),
)

EMPTY_PLAN = Plan(
    model_class="Net",
    fingerprint="0123abcd",
    step=StepInfo(),
    budget_bytes=500 * MIB,
    predicted_peak_bytes=400 * MIB,
    predicted_overhead_ratio=0.0,
    plain_peak_bytes=400 * MIB,
    solver="none",
    status="empty",
)

PROFILE = Profile(
    model_class="Net",
    fingerprint="0123abcd",
    step=STEP,
    units=(
        UnitCall("", 0, 0, "Net", -1, 0, 2),
        UnitCall("h.0", 0, 0, "Linear", 0, 0, 1),
    ),
    ops=(
        Op("aten.mm.default", 1, "forward", (0, 1), (2,), 1000, 64, True, False),
        Op("aten.native_dropout.default", 0, "forward", (2,), (3,), 500, 0, False, True),
        Op("aten.mm.default", -1, "backward", (), (), 2000, 0, True, False),
    ),
    values=(Value(0, 0, -1), Value(1, 0, -1), Value(2, 0, 0), Value(2, 1, 1)),
    storages=(
        Storage(3 * MIB, "parameter", -1, 3, 3),
        Storage(1 * MIB, "input", -1, 3, 3),
        Storage(2 * MIB, "activation", 0, 2, 1),
        Storage(3 * MIB, "gradient", 2, 3, 3),
    ),
    saved=(SavedTensor(0, 1, 2), SavedTensor(2, 2, -1)),
    plain_peak_bytes=9 * MIB,
    step_time_ns=4000,
    forward_time_ns=1500,
    excluded=(Exclusion("norm", "writes its statistics"),),
)

Document = Plan | Profile
DOCUMENTS: list[Document] = [PLAN, EMPTY_PLAN, PROFILE]
SCHEMAS = Path(planner.__file__).parent / "documents" / "schema"


def name_of(document: Document) -> str:
    """Return ``Plan`` or ``Profile``."""
    return type(document).__name__


def validator(document: Document) -> Any:
    """Return a validator for the schema that is shipped for this kind of document."""
    path = SCHEMAS / f"{name_of(document).lower()}.schema.json"
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
