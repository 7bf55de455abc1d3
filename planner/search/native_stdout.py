"""Keeps a native library's prints off standard output, which belongs to whoever called us."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def suppressed_stdout() -> Iterator[None]:
    """Send file descriptor 1 to nowhere: HiGHS writes there without asking Python."""
    try:
        sys.stdout.flush()
        saved = os.dup(1)
    except (OSError, ValueError, AttributeError):  # no standard output to protect
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(nowhere)
        os.close(saved)
