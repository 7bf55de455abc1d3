"""`load`: a plan or a profile, whichever a file holds."""

from __future__ import annotations

from os import PathLike

from planner.documents.codec import build
from planner.documents.files import read_document
from planner.documents.plan import Plan
from planner.documents.profile import Profile
from planner.documents.refusal import read_kind
from planner.documents.text import parse


def load(path: str | PathLike[str]) -> Plan | Profile:
    """Read a plan or a profile, whichever the file's own ``kind`` says.

    Raises:
        DocumentError: the file cannot be read, with the field at fault.
    """
    top = parse(read_document(path), str(path))
    if read_kind(top, str(path)) == Plan.KIND:
        return build(Plan, top, str(path))
    return build(Profile, top, str(path))
