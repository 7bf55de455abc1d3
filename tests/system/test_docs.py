"""The documentation: its code runs, its links lead somewhere, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import planner

ROOT = Path(planner.__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
ELLIPSIS_ONLY = {"trainers.md"}
"""Pages whose code needs a trainer and data of the reader's; tests/system/test_integrations.py runs
the callbacks."""
RUN = [
    page for page in PAGES if "```python\n" in page.read_text() and page.name not in ELLIPSIS_ONLY
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, empty_folder: None, no_warnings: None
) -> None:
    names: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(code, page.name, "exec"), names)
    plan = names.get("plan")
    assert plan is None or isinstance(plan, planner.Plan)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert [name for name in sorted(pages) if f": {name}" not in navigation] == []


def test_every_error_is_explained() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    errors = [name for name in planner.__all__ if name.endswith("Error")]
    assert [name for name in errors if name not in page] == []


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    names = [name for name in planner.__all__ if not name.endswith("Error")]
    assert [name for name in names if f"::: planner.{name}" not in page] == []
