"""The one-way flow between the rooms, and the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import planner

PACKAGE = Path(planner.__file__).parent
PURE = ("documents", "graph", "search", "report", "errors", "units")

# Who may import whom: profiler -> graph -> search -> plan -> applier -> verifier, joined by
# documents. Single modules are named where a whole room would be too much. A room may always
# import itself.
BASE = {"errors", "units"}
WHAT_RUNS_PLANS = {
    *BASE,
    "documents",
    "profiler",
    "graph",
    "search",
    "planning",
    "applier",
    "verifier",
}
MAY_IMPORT = {
    "errors": {"units"},
    "units": {"errors"},
    "documents": {*BASE, "report"},
    "report": {*BASE, "documents"},
    "replay": BASE,
    "profiler": {*BASE, "documents", "replay"},
    "graph": {*BASE, "documents", "replay.slicing"},
    "search": {*BASE, "documents", "graph"},
    "applier": {*BASE, "documents", "replay", "profiler", "graph.address"},
    "verifier": {*BASE, "documents", "profiler", "applier", "report", "replay.audit"},
    "planning": {*BASE, "documents", "profiler", "graph", "search", "applier", "verifier"},
    "trials": WHAT_RUNS_PLANS,
    "live": {
        *BASE,
        "documents",
        "profiler",
        "replay.stack",
        "applier",
        "planning",
    },
    "api": {*BASE, "documents", "profiler", "planning", "trials", "verifier"},
    "frontiers": {*BASE, "documents", "graph", "search", "profiler", "api"},
    "insight": {*BASE, "documents", "graph", "search", "report"},
    "batches": WHAT_RUNS_PLANS,
    "cli": {*BASE, "documents", "report", "profiler", "frontiers", "insight", "batches", ""},
    "__main__": {"cli"},
}
ROOMS = sorted(MAY_IMPORT)


def room_of(file: Path) -> str:
    """Return the first part of the file's place in the package."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_modules(tree: ast.AST) -> set[str]:
    """Return what the code imports from planner as dotted names without `planner.`.

    The public names, and the package itself, are the empty string.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is meant"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {n.removeprefix("planner").lstrip(".") for n in names if n.split(".")[0] == "planner"}
    return {"" if name in planner.__all__ else name for name in ours}


def is_allowed(name: str, room: str) -> bool:
    """Return whether a file of `room` may import `name`."""
    prefixes = {".".join(name.split(".")[:length]) for length in range(1, 4)}
    return bool(prefixes & {room, *MAY_IMPORT[room]}) or name == "" and "" in MAY_IMPORT[room]


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_the_flow_allows(room: str) -> None:
    files = [file for file in PACKAGE.rglob("*.py") if room_of(file) == room]
    assert files, f"no room {room}"
    wrong = [
        f"{file.relative_to(PACKAGE)} imports planner.{name}"
        for file in files
        for name in sorted(imported_modules(ast.parse(file.read_text())))
        if not is_allowed(name, room)
    ]
    assert wrong == []


def test_every_module_belongs_to_a_known_room() -> None:
    assert {room_of(file) for file in PACKAGE.rglob("*.py")} - {"__init__"} == set(ROOMS)


def modules_of(room: str) -> list[str]:
    """Return the names of all modules of a room."""
    files = [file for file in PACKAGE.rglob("*.py") if room_of(file) == room]
    parts = [file.relative_to(PACKAGE.parent).with_suffix("").parts for file in files]
    return sorted(".".join(p).removesuffix(".__init__") for p in parts)


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_never_import_torch(room: str) -> None:
    program = "import sys\n"
    program += "".join(f"import {name}\n" for name in modules_of(room))
    program += "sys.exit('torch' in sys.modules)\n"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr or f"{room} imports torch"


def test_pure_rooms_do_not_name_torch_either() -> None:
    wrong = [
        str(file.relative_to(PACKAGE))
        for room in PURE
        for file in PACKAGE.rglob("*.py")
        if room_of(file) == room and _names_torch(ast.parse(file.read_text()))
    ]
    assert wrong == []


def _names_torch(tree: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "torch" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch")
        for node in ast.walk(tree)
    )


def test_importing_planner_does_not_import_torch() -> None:
    program = "import sys, planner; planner.Plan, planner.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_public_names_are_what_all_claims() -> None:
    assert planner.__all__ == sorted(planner.__all__, key=lambda n: (n.islower(), n))
    for name in planner.__all__:
        assert getattr(planner, name) is not None
        assert name in dir(planner)
    expected = {"plan", "apply", "verify", "profile", "load", "Plan", "Profile", "Verification"}
    assert expected <= set(planner.__all__)


def test_every_error_is_public_and_in_the_tree() -> None:
    from planner import errors

    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert tree == {name for name in planner.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(planner, name), planner.PlannerError) for name in tree)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = planner.no_such_name
