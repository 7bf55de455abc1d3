"""`load`: a plan or a profile, whichever a file holds."""

from __future__ import annotations

from os import PathLike

from planner.documents.files import read_document
from planner.documents.plan import Plan
from planner.documents.plan_codec import read_plan
from planner.documents.profile import Profile
from planner.documents.profile_codec import read_profile
from planner.documents.text import PLAN_KIND, parse, read_kind


def load(path: str | PathLike[str]) -> Plan | Profile:
    """Read a plan or a profile, whichever the file's own ``kind`` says.

    Raises:
        DocumentError: the file cannot be read, with the field at fault.
    """
    top = parse(read_document(path), str(path))
    return read_plan(top) if read_kind(top) == PLAN_KIND else read_profile(top)
