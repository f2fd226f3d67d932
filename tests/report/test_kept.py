"""Summaries on the terminal: each under its case, a few of many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.findings.names import Names
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report import terminal
from runner.report.terminal import MOST_SUMMARIES


@pytest.fixture
def rows(tmp_path):
    def made(count):
        found = []
        for cols in range(count):
            case = CaseRecord(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), Settings("cpu", 0))
            names = [f"files/{case.key}/profile/{name}" for name in ("kernels.csv", "summary.txt")]
            (tmp_path / names[0]).parent.mkdir(parents=True)
            for name in names:
                (tmp_path / name).write_text(f"of {cols}\n")
            found.append(Row(case=case, status="ok", files=tuple(names)))
        return found

    return made


def summaries(folder, rows):
    return list(terminal.summaries(folder, rows, Names([row.case for row in rows])))


def test_a_summary_stands_under_its_case_and_above_its_other_files(rows, tmp_path):
    summary, place, *_ = summaries(tmp_path, rows(2))
    assert summary == "\ngelu cols=0 torch: profile\nof 0"
    assert place.startswith(f"  in {tmp_path}/files/")
    assert place.endswith("/profile: kernels.csv")


def test_of_many_the_first_are_told_and_the_others_counted(rows, tmp_path):
    said = summaries(tmp_path, rows(MOST_SUMMARIES + 3))
    assert len(said) == 2 * MOST_SUMMARIES + 1
    assert said[-1] == f"\n3 more summaries are in the folders of {tmp_path / 'files'}"


def test_what_lies_on_another_machine_is_left_out(rows, tmp_path):
    one, other = rows(2)
    (tmp_path / one.files[1]).unlink()
    one = replace(one, files=(*one.files, "x" * 5000, "a\0/profile/summary.txt", f"{'x' * 300}/profile/summary.txt"))
    assert [line.splitlines()[1] for line in summaries(tmp_path, [one, other])[::2]] == ["gelu cols=1 torch: profile"]


def test_large_files_of_measurements_are_named(rows, tmp_path, monkeypatch):
    run = rows(2)
    names = Names([row.case for row in run])
    assert terminal.large_files(tmp_path, run, names) == []
    path = tmp_path / run[1].files[0]
    with open(path, "wb") as file:
        file.truncate(3 * 2**30)
    (said,) = terminal.large_files(tmp_path, run, names)
    assert said == f"the files of measurements take 3 GiB; the largest, of gelu cols=1 torch, is {path} (3 GiB)"
