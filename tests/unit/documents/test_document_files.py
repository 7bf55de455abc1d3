"""Documents on disk: whole or not at all, and every failure a `DocumentError`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from document_samples import PLAN

from planner.documents import (
    Plan,
    load,
)
from planner.errors import DocumentError, PlanFileExistsError


def test_an_existing_file_stays_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    with pytest.raises(PlanFileExistsError) as raised:
        PLAN.save(path)
    assert raised.value.path == str(path) and "force" in raised.value.fix
    assert path.read_text() == "mine"
    PLAN.save(path, force=True)
    assert Plan.load(path) == PLAN
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(DocumentError, match="No space left on device"):
        PLAN.save(path, force=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        PLAN.save(path, force=True)
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "old"


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as raised:
        PLAN.save(tmp_path / "no" / "such" / "plan.json")
    assert raised.value.numbers == "No such file or directory"
    assert f"mkdir -p {tmp_path / 'no' / 'such'}" in raised.value.fix
    assert raised.value.path.endswith("plan.json")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DocumentError, match="Permission denied"):
        PLAN.save(tmp_path / "plan.json")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody may write to")
def test_a_folder_nobody_may_write_to() -> None:
    with pytest.raises(DocumentError, match="cannot write /proc/plan.json"):
        PLAN.save("/proc/plan.json")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "\ud800", "."])
@pytest.mark.parametrize("force", [False, True])
def test_paths_that_cannot_be(
    path: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((DocumentError, PlanFileExistsError)):
        PLAN.save(path, force=force)
    with pytest.raises(DocumentError):
        load(path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_as_long_as_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    PLAN.save(path)
    assert load(path) == PLAN


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "plan.json"
    link.symlink_to(tmp_path / "real" / "plan.json")
    PLAN.save(link)  # the link's target does not exist yet
    replace(PLAN, solver="other").save(link, force=True)
    assert link.is_symlink()
    assert Plan.load(tmp_path / "real" / "plan.json").solver == "other"


def test_a_new_file_has_the_rights_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    PLAN.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_missing_file_a_folder_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(DocumentError, match="it is a folder"):
        load(tmp_path)
    (tmp_path / "image").write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(DocumentError, match="byte 0 is not UTF-8"):
        load(tmp_path / "image")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentError, match="not a regular file"):
        load(tmp_path / "pipe")


def test_errors_from_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json().replace('"optimal"', '"superb"'))
    with pytest.raises(DocumentError) as raised:
        load(path)
    assert raised.value.path == str(path)
    assert str(path) in raised.value.what
