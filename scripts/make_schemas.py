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


def main() -> None:
    for kind in (planner.Plan, planner.Profile):
        path = FOLDER / f"{kind.__name__.lower()}.schema.json"
        path.write_text(laid_out(schema(kind)) + "\n", encoding="utf-8")


def laid_out(value: Any, depth: int = 2) -> str:
    """Return JSON text with a record a line: enough to see in a diff which of them changed."""
    if not depth or not isinstance(value, dict):
        return json.dumps(value)
    lines = [f"{json.dumps(key)}: {laid_out(part, depth - 1)}" for key, part in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    main()
