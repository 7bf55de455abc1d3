"""Gives a forked process files of its own: parent and child would share positions and writes."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile

_MOST_COPIED_BYTES = 2**26
"""Of larger files that are open for writing, the copy has holes in place of the content."""


def own_open_files() -> None:
    """Put copies in the place of all regular files that are open, but for the standard streams."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                _own_file(int(name))
            except OSError:  # the listing's own descriptor, or a file that may not be read again
                continue


def _own_file(descriptor: int) -> None:
    import fcntl  # not on every system that can import this module

    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        return
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & os.O_ACCMODE == os.O_RDONLY:
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    else:
        own = _copy(descriptor, facts.st_size)
        fcntl.fcntl(own, fcntl.F_SETFL, flags & os.O_APPEND)
    os.lseek(own, position, os.SEEK_SET)
    os.dup2(own, descriptor, inheritable=False)
    os.close(own)


def _copy(descriptor: int, size: int) -> int:
    with tempfile.TemporaryFile() as copy:
        if size <= _MOST_COPIED_BYTES:
            with open(f"/proc/self/fd/{descriptor}", "rb") as original:
                shutil.copyfileobj(original, copy)
        copy.flush()
        os.ftruncate(copy.fileno(), size)
        return os.dup(copy.fileno())
