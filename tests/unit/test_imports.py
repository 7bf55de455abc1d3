"""The one-way flow between the rooms, and the public names."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import planner

PACKAGE = Path(planner.__file__).parent

ORDER = (
    "units",
    "errors",
    "budget",
    "documents",
    "replay",
    "graph",
    "reports",
    "training_step",
    "isolation",
    "memory",
    "profiler",
    "estimate",
    "search",
    "applier",
    "verifier",
    "planning",
    "online",
    "analysis",
    "api",
    "sweeps",
    "reviews",
    "integrations",
    "cli",
)
"""Rooms and single modules, each of which may import those before it and nothing else."""

PURE = (
    "errors",
    "units",
    "budget",
    "documents",
    "graph",
    "reports",
    "search",
    "analysis",
    "reviews",
)
"""Rooms that never import torch, directly or through others."""


def room_of(file: Path) -> str:
    """Return the first part of the file's place in the package."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name, packages without `.__init__`."""
    files = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts) for f in files]
    return {n.removesuffix(".__init__"): f for n, f in zip(names, files, strict=True)}


def ours(tree: ast.AST) -> list[tuple[str, str]]:
    """Return the imports from the package: (module, name), the name empty for a module."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which room is meant"
            found += [(node.module or "", alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "planner"]


def rooms_imported(tree: ast.AST) -> set[str]:
    """Return the rooms that the code imports from; a public name counts as `api`."""
    rooms = set()
    for module, name in ours(tree):
        parts = module.split(".")
        room = parts[1] if len(parts) > 1 else name
        rooms.add("api" if len(parts) == 1 and room not in ORDER else room)
    return rooms


def test_rooms_are_the_known_ones() -> None:
    rooms = {room_of(file) for file in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms <= set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_only_from_rooms_below_it(room: str) -> None:
    below = {*ORDER[: ORDER.index(room)], room}
    wrong = [
        f"{name} imports from {other}"
        for name, file in modules().items()
        if room_of(file) == room
        for other in sorted(rooms_imported(ast.parse(file.read_text())) - below)
    ]
    assert wrong == []


def test_no_module_takes_a_private_name_from_another() -> None:
    wrong = [
        f"{name} imports {module}.{taken}"
        for name, file in modules().items()
        for module, taken in ours(ast.parse(file.read_text()))
        if taken.startswith("_")
        and not taken.endswith("__")
        or any(part.startswith("_") and not part.endswith("__") for part in module.split("."))
    ]
    assert wrong == []


def test_packages_hold_no_code_of_their_own() -> None:
    """`__init__` files say what is in the room, and re-export; `planner` itself looks names up."""
    defining = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While)
    wrong = [
        name
        for name, file in modules().items()
        if file.name == "__init__.py" and name != "planner"
        for node in ast.parse(file.read_text()).body
        if isinstance(node, defining)
    ]
    assert wrong == []


def test_files_can_be_read_in_one_sitting() -> None:
    long = {n: c for n, f in modules().items() if (c := len(f.read_text().splitlines())) > 300}
    assert long == {}


def test_functions_can_be_seen_at_once() -> None:
    """At most three bodies have over 40 lines, docstrings aside."""
    long = [
        f"{name}.{node.name}"
        for name, file in modules().items()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _body_lines(node) > 40
    ]
    assert len(long) <= 3, long


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_never_import_torch(room: str) -> None:
    names = [n for n, file in modules().items() if room_of(file) == room]
    program = "import sys\n" + "".join(f"import {name}\n" for name in names)
    program += "sys.exit('torch' in sys.modules)\n"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr or f"{room} imports torch"


def test_pure_rooms_do_not_name_torch_either() -> None:
    wrong = [
        name
        for name, file in modules().items()
        if room_of(file) in PURE and _names_torch(ast.parse(file.read_text()))
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


def test_planning_does_not_import_the_compiler() -> None:
    program = """
import sys, torch, planner
planner.plan(torch.nn.Linear(4, 4), budget_mb=1, inputs=torch.ones(2, 4))
sys.exit('torch._dynamo' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_public_names_are_what_all_claims() -> None:
    assert planner.__all__ == sorted(planner.__all__, key=lambda n: (n.islower(), n))
    for name in planner.__all__:
        assert getattr(planner, name) is not None
        assert name in dir(planner)
    expected = {"plan", "apply", "verify", "profile", "load", "Plan", "Profile", "Verification"}
    assert expected <= set(planner.__all__)


def test_no_verb_takes_more_than_13_parameters() -> None:
    for verb in (planner.profile, planner.plan, planner.apply, planner.verify, planner.sweep):
        assert len(inspect.signature(verb).parameters) <= 13


def test_every_error_is_public_and_in_the_tree() -> None:
    from planner import errors

    tree = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert tree == {name for name in planner.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(planner, name), planner.PlannerError) for name in tree)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = planner.no_such_name
