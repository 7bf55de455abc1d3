"""Which function draws a document in a notebook cell.

Documents know no HTML: the room that draws registers its functions here, by name, so that nothing
of it is imported before a notebook asks for a cell.
"""

from __future__ import annotations

from importlib import import_module

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
