"""Plans and profiles as data and as JSON files. No torch in this room."""

from __future__ import annotations

from planner.documents.fields import SCHEMA_VERSION
from planner.documents.files import load
from planner.documents.plan import Boundary, Cut, Pins, Plan, Segment, UnitPrint
from planner.documents.profile import Op, Profile, SavedTensor, Storage, UnitCall, Value
from planner.documents.step import CustomOp, Exclusion, StepInfo, TensorSpec

__all__ = [
    "SCHEMA_VERSION",
    "Boundary",
    "CustomOp",
    "Cut",
    "Exclusion",
    "Op",
    "Pins",
    "Plan",
    "Profile",
    "SavedTensor",
    "Segment",
    "StepInfo",
    "Storage",
    "TensorSpec",
    "UnitCall",
    "UnitPrint",
    "Value",
    "load",
]
