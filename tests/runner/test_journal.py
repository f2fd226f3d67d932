"""The journal keeps every row that was written, whatever happened next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner import journal
from runner.row import Row

ROOT = Path(__file__).resolve().parents[2]


def row(case, cols, **parts):
    return Row(case=case(cols=cols), status="ok", **parts)


def test_rows_come_back_in_order(case, tmp_path):
    rows = [row(case, cols) for cols in range(5)]
    with journal.Journal(tmp_path) as file:
        for each in rows:
            file.start(each.case)
            file.row(each)
    assert journal.read(tmp_path) == rows


def test_a_torn_record_costs_itself_only(case, tmp_path):
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1))
    with open(tmp_path / journal.NAME, "ab") as raw:
        raw.write(b'\n{"record":"row","case":{"work')
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 2))
    assert [r.case.workload.fields["cols"] for r in journal.read(tmp_path)] == [1, 2]


def test_the_first_row_of_a_case_counts(case, tmp_path):
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1, metrics={"wall_us": 1.0}))
        file.row(row(case, 1, metrics={"wall_us": 2.0}))
    assert [r.time_us for r in journal.read(tmp_path)] == [1.0]


def test_a_full_disk_is_an_error_and_not_a_lost_row(case, monkeypatch, tmp_path):
    with journal.Journal(tmp_path) as file:
        monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
        with pytest.raises(OSError, match="disk is full"):
            file.row(row(case, 1))


WRITER = """
import sys
from pathlib import Path
from runner.case import Case, Choice
from runner.journal import Journal
from runner.row import Row
with Journal(Path(sys.argv[1])) as journal:
    for cols in range(1000000):
        case = Case(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), "cpu", 0)
        journal.row(Row(case=case, status="ok"))
        print(cols, flush=True)
"""


def test_a_kill_loses_no_row_that_was_acknowledged(tmp_path):
    for delay in (10, 25, 60):  # rows acknowledged before the kill
        folder = tmp_path / str(delay)
        folder.mkdir()
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(delay)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout.read().split("\n") if line]
        writer.wait()
        kept = {r.case.workload.fields["cols"] for r in journal.read(folder)}
        assert kept >= set(acknowledged)
