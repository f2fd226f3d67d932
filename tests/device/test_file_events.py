"""Which files are opened and written in watched folders, by whom ever."""

from __future__ import annotations

import ctypes
import os
import subprocess

import pytest

from runner.device import file_events
from runner.device.file_events import CREATED, MODIFIED, OPENED, FileEvents


@pytest.fixture
def events(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("a.txt", "below/b.txt"):
        (tmp_path / name).write_text("1")
    watched = FileEvents()
    watched.watch(str(tmp_path))
    return watched


def test_what_this_process_or_another_opens_or_writes_is_reported(events, tmp_path):
    assert [*events.read()] == []
    (tmp_path / "a.txt").read_text()
    subprocess.run(["cat", "below/b.txt"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "new.txt").write_text("1")
    seen: dict[str, int] = {}
    for path, event in events.read():
        seen[path] = seen.get(path, 0) | event
    assert seen[f"{tmp_path}/a.txt"] & OPENED
    assert seen[f"{tmp_path}/below/b.txt"] & OPENED
    assert seen[f"{tmp_path}/new.txt"] & CREATED
    assert seen[f"{tmp_path}/new.txt"] & MODIFIED
    assert events.lost == ""
    silent = FileEvents()
    silent.watch(str(tmp_path), report=False)
    (tmp_path / "a.txt").read_text()
    assert [*silent.read()] == []


@pytest.mark.parametrize("name", [".hidden/x", "environment/pyvenv.cfg", "outputs/rows.jsonl"])
def test_hidden_folders_environments_and_runs_are_not_watched(tmp_path, name):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("1")
    events = FileEvents()
    events.watch(str(tmp_path))
    (tmp_path / name).read_text()
    assert [*events.read()] == []


def test_events_that_are_lost_are_said_to_be(events, tmp_path, monkeypatch):
    for turn in range(20_000):  # the system keeps 16384
        os.close(os.open(tmp_path / ("a.txt", "below/b.txt")[turn % 2], os.O_RDONLY))
    assert [*events.read()]
    assert events.lost == "too many files were opened"
    monkeypatch.setattr(file_events, "MOST_FOLDERS", 1)
    many = FileEvents()
    many.watch(str(tmp_path))
    assert many.lost == f"{tmp_path} has more than 1 folders"


def test_a_system_without_them_and_closed_descriptors_are_said_to_be(events, monkeypatch):
    os.close(events._descriptor)
    assert [*events.read()] == []
    assert events.lost.startswith("files cannot be watched: ")
    monkeypatch.setattr(ctypes, "CDLL", lambda *name, **options: object())
    missing = FileEvents()
    missing.watch(".")
    assert missing.lost == "this system does not report which files are opened"
