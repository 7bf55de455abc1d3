"""Documents on disk: whole or not at all.

Writing goes to a new file in the same folder that then takes the target's place, so that a
reader never sees half a document and a failure leaves the old one. Called by `Plan` and `Profile`.
"""

from __future__ import annotations

import os
import secrets
import stat
from os import PathLike
from pathlib import Path

from planner.documents.codec import build
from planner.documents.plan import Plan
from planner.documents.profile import Profile
from planner.documents.refusal import read_kind
from planner.documents.text import AGAIN, MAX_TEXT_BYTES, parse
from planner.errors import DocumentError, PlanFileExistsError


def load(path: str | PathLike[str]) -> Plan | Profile:
    """Read a plan or a profile, whichever the file's own ``kind`` says.

    Raises:
        DocumentError: the file cannot be read, with the field at fault.
    """
    top = parse(read_document(path), str(path))
    if read_kind(top, str(path)) == Plan.KIND:
        return build(Plan, top, str(path))
    return build(Profile, top, str(path))


def read_document(path: str | PathLike[str]) -> str:
    """Return the text of a file.

    Raises:
        DocumentError: no such file, not a regular file, too large, or not UTF-8.
    """
    try:
        raw = _read_bytes(path)
        return raw.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError as error:
        numbers = f"byte {error.start} is not UTF-8"
        raise _failure(path, "read", numbers, "not a text file", AGAIN) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        fix = "check the path, and that the file may be read"
        raise _failure(path, "read", _reason(error), "a wrong path or rights", fix) from error


def _read_bytes(path: str | PathLike[str]) -> bytes:
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):  # opening a named pipe would wait for ever
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise _failure(path, "read", f"it is {kind}", "a wrong path", "name a plan or profile file")
    with open(path, "rb") as file:
        raw = file.read(MAX_TEXT_BYTES + 1)
    if len(raw) > MAX_TEXT_BYTES:
        numbers = f"more than {MAX_TEXT_BYTES:,} bytes"
        raise _failure(path, "read", numbers, "not a plan or a profile", AGAIN)
    return raw


def write_document(path: str | PathLike[str], text: str, *, force: bool = False) -> None:
    """Write a file at once; an existing one stays unless ``force``.

    Args:
        path: the file; its folder must exist. A symbolic link is written through.
        text: what it will hold, as UTF-8.
        force: replace an existing file.

    Raises:
        PlanFileExistsError: the file exists and ``force`` is false.
        DocumentError: the folder is missing or read-only, the disk is full, ...
    """
    try:
        target = Path(os.path.realpath(path))
        if not force and os.path.lexists(target):
            raise PlanFileExistsError(path=str(path))
        _replace(target, text)
    except (OSError, ValueError) as error:
        fix = _write_fix(error, path)
        raise _failure(path, "write", _reason(error), "a wrong path or rights", fix) from error


def _replace(target: Path, text: str) -> None:
    # A name of its own length, as the target's may already be the longest the system takes.
    draft = target.parent / f".planner-{secrets.token_hex(8)}.tmp"
    try:
        with open(draft, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _write_fix(error: Exception, path: str | PathLike[str]) -> str:
    if isinstance(error, FileNotFoundError):
        return f"create the folder first: mkdir -p {os.path.dirname(os.fspath(path)) or '.'}"
    return "choose a path in a folder that can be written"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _failure(
    path: str | PathLike[str], verb: str, numbers: str, cause: str, fix: str
) -> DocumentError:
    return DocumentError(f"cannot {verb} {path}", numbers, cause, fix, path=str(path))
