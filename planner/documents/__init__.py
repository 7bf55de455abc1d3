"""Plans and profiles as data and as JSON files. No torch in this room."""

from __future__ import annotations

from os import PathLike

from planner.documents.plan import Boundary, Cut, Pins, Plan, Segment, UnitPrint
from planner.documents.profile import Op, Profile, SavedTensor, Storage, UnitCall, Value
from planner.documents.step import SCHEMA_VERSION, Exclusion, StepInfo, TensorSpec

__all__ = [
    "SCHEMA_VERSION",
    "Boundary",
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


def load(path: str | PathLike[str]) -> Plan | Profile:
    """Read a plan or a profile, whichever the file's own ``kind`` says.

    Raises:
        DocumentError: the file cannot be read, with the field at fault.
    """
    from planner.documents.files import read_document
    from planner.documents.plan_codec import read_plan
    from planner.documents.profile_codec import read_profile
    from planner.documents.text import PLAN_KIND, parse, read_kind

    top = parse(read_document(path), str(path))
    return read_plan(top) if read_kind(top) == PLAN_KIND else read_profile(top)
