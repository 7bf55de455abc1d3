"""`Document`: what plans and profiles have in common, as files and in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from os import PathLike
from typing import ClassVar, NamedTuple, TypeVar

KINDS = ("planner.plan", "planner.profile")

D = TypeVar("D", bound="Document")


class Fault(NamedTuple):
    """A value that a document must not hold: where it stands, and what would be right."""

    field: str
    found: object
    wanted: str


class Document:
    """Base of the dataclasses that are files; `KIND` is what a file says that it is."""

    __slots__ = ()
    KIND: ClassVar[str]

    def faults(self) -> Iterable[Fault]:
        """Return what is wrong beyond the types of fields, e.g. a row number that is too high."""
        return ()

    def to_json(self) -> str:
        """Return the document as JSON text, the same text for the same document."""
        from planner.documents.codec import write

        return write(self)

    @classmethod
    def from_json(cls: type[D], text: str) -> D:
        """Read a document from JSON text; raises `DocumentError` naming the field at fault."""
        from planner.documents.codec import read

        return read(cls, text)

    def save(self, path: str | PathLike[str], force: bool = False) -> None:
        """Write the document; an existing file stays unless ``force``.

        Raises:
            PlanFileExistsError: the file exists.
            DocumentError: it cannot be written.
        """
        from planner.documents.files import write_document

        write_document(path, self.to_json(), force=force)

    @classmethod
    def load(cls: type[D], path: str | PathLike[str]) -> D:
        """Read a document from a file; raises `DocumentError` naming the field at fault."""
        from planner.documents.codec import read
        from planner.documents.files import read_document

        return read(cls, read_document(path), str(path))

    def _repr_html_(self) -> str | None:
        return cell(self)


# Documents contain no HTML code: `planner.report` is registered by name, and imported when a
# notebook first displays a document.
_CELLS: dict[str, tuple[str, str]] = {}


def register_cell(kind: str, module: str, function: str) -> None:
    """Name the function that draws documents of a class as HTML.

    Args:
        kind: name of the document's class.
        module: where the function is.
        function: its name; it takes the document and returns HTML.
    """
    _CELLS[kind] = module, function


def cell(document: object) -> str | None:
    """Return a document as HTML, or None (a notebook then shows text) where nothing draws it."""
    home = _CELLS.get(type(document).__name__)
    if home is None:
        return None
    drawn: str = getattr(import_module(home[0]), home[1])(document)
    return drawn
