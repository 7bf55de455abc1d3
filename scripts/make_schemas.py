"""Write the JSON schemas of plans and profiles into the package, from the classes themselves.

python scripts/make_schemas.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import planner
from planner.documents.wire import schema

FOLDER = Path(planner.__file__).parent / "documents" / "schema"
DEPTH = 3
"""Objects and lists within each other that still stand in one line."""


def main() -> None:
    for kind in (planner.Plan, planner.Profile):
        path = FOLDER / f"{kind.__name__.lower()}.schema.json"
        path.write_text(laid_out(schema(kind)) + "\n", encoding="utf-8")


def laid_out(value: Any, indent: str = "") -> str:
    """Return JSON text with one field of a record a line."""
    if not isinstance(value, dict) or _depth(value) <= DEPTH:
        return json.dumps(value)
    deeper = indent + "  "
    lines = [f"{json.dumps(key)}: {laid_out(part, deeper)}" for key, part in value.items()]
    return "{\n" + deeper + f",\n{deeper}".join(lines) + f"\n{indent}}}"


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, parts), default=0) if isinstance(value, (dict, list)) else 0


if __name__ == "__main__":
    main()
