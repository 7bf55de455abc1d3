"""Output of a command: results to stdout, everything else to stderr. Used by every subcommand."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

StageFunction = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Console:
    """The output side of one command.

    With `as_json`, stdout carries one JSON document and nothing else. `quiet` leaves out notes and
    progress. `verbose` adds tracebacks.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def result(self, text: str, document: Callable[[], str]) -> None:
        """Print the command's answer: `text` for people, or `document()` with `as_json`."""
        self.out.write(_line(document() if self.as_json else text))

    def note(self, text: str) -> None:
        """Print a note on stderr, unless quiet."""
        if not self.quiet:
            self.err.write(_line(text))

    def complain(self, text: str) -> None:
        """Print an error on stderr."""
        self.err.write(_line(text))

    def flush(self) -> None:
        """Flush stdout, so that a closed pipe raises here and not at exit."""
        self.out.flush()

    def abandon(self) -> None:
        """Discard the rest of stdout: its reader has closed the pipe."""
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self.out.fileno())

    @contextmanager
    def stages(self, total: int) -> Iterator[StageFunction]:
        """Show a bar of `total` stages on a terminal; call what it yields at each stage's start."""
        bar = self.bar(total)
        started = False

        def start(name: str) -> None:
            nonlocal started
            bar.update(int(started))
            started = True
            bar.set_description_str(name)

        with _ticking(bar):
            yield start

    def bar(self, total: int) -> Any:
        """Return a tqdm bar, silent when stderr is no terminal or the command is quiet."""
        from tqdm import tqdm

        hidden = True if self.quiet else None  # None: tqdm looks whether it is a terminal
        layout = "{desc} |{bar}| {n_fmt}/{total_fmt} {elapsed}"
        return tqdm(total=total, file=self.err, disable=hidden, leave=False, bar_format=layout)


@contextmanager
def _ticking(bar: Any) -> Iterator[None]:
    """Draw a bar every second, so that a long stage shows the time go by; close it at the end."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(1.0):
            bar.refresh()

    ticker = threading.Thread(target=tick, daemon=True)
    if not bar.disable:
        ticker.start()
    try:
        yield
    finally:
        over.set()
        if ticker.is_alive():
            ticker.join()
        bar.close()


def _line(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
