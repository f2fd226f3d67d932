"""``runner list``: past runs, the newest last."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from runner import cli
from runner.findings.past import read_run
from runner.store import journal
from runner.store.run_folder import run_folders


@pytest.fixture
def listed(capsys, tmp_path):
    """``listed("--limit", "1")``: the lines that it prints about the runs in tmp_path; then its errors."""

    def call(*words, code=0):
        assert cli.main(["list", f"output_dir={tmp_path}", *words]) == code
        printed = capsys.readouterr()
        return printed.err if code else [re.split(r"  +", line.strip()) for line in printed.out.splitlines()]

    return call


@pytest.fixture
def run(made, tmp_path):
    """``run("2025-01-31", commit="abc", dirty=True)``: the folder of a run whose rows have these metrics."""

    def build(day, rows=None, **metrics):
        rows = made.sweep() if rows is None else rows
        rows = [replace(row, metrics={**row.metrics, **metrics}) for row in rows]
        return made.finished(tmp_path / day / "10-11-12-both", rows)

    return build


HEADS = ["date", "time", "name", "device", "commit", "cases", "failed", "folder"]


def test_a_run_has_its_date_name_device_commit_cases_and_failures(run, listed, tmp_path):
    mine = {"repository": "https://example.org/mine.git", "commit": "0123456789" * 4, "dirty": True}
    first, second = run("2025-01-30"), run("2025-01-31", **mine)
    assert listed() == [
        HEADS,
        ["2025-01-30", "10:11:12", "both", "cpu", "18", "2", str(first)],
        ["2025-01-31", "10:11:12", "both", "cpu", "01234567*", "18", "2", str(second)],
    ]
    assert (read_run(first).commits, read_run(second).commits) == ("", "01234567*")
    assert [run_folders(str(place)) for place in (first.parent, first)] == [[first]] * 2
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / "outputs").symlink_to(tmp_path)
    assert [folder.parent.name for folder in run_folders(str(tmp_path / "above"))] == ["2025-01-30", "2025-01-31"]


def test_the_last_row_of_a_case_counts_as_in_a_resumed_run(run, made, listed):
    folder = run("2025-01-31")
    failed = [row for row in made.sweep() if row.failed]
    with journal.Journal(folder) as file:
        for row in failed:
            file.row(made.timed(row.case, 1.0))
    assert [line[-2] for line in listed()] == ["failed", "0"]


def test_what_is_not_done_is_said(run, listed):
    folder = run("2025-01-31")
    lines = (folder / journal.NAME).read_bytes().splitlines(keepends=True)
    (folder / journal.NAME).write_bytes(b"".join(lines[:5]))
    assert [line[4] for line in listed()[1:]] == ["4 of 18"]


def test_limit_and_where_choose_runs(run, listed):
    for day in range(1, 4):
        run(f"2025-01-0{day}", commit=f"{day}" * 40)
    dates = [line[0] for line in listed("--limit", "2")]
    assert dates == ["date", "2025-01-02", "2025-01-03", "1 older run is not shown; --limit 0 shows all"]
    assert [line[0] for line in listed("--limit", "0")[1:]] == ["2025-01-01", "2025-01-02", "2025-01-03"]
    assert [line[0] for line in listed("--where", "commit=1*,3*,device=cpu")[1:]] == ["2025-01-01", "2025-01-03"]
    for words, said in {
        ("--where", "commit=4*"): "--where commit=4*: no row has it; one of: 11111111, 22222222, 33333333",
        ("--where", "nam=x"): "--where nam: no such column; did you mean name? One of: ",
        ("last",): "last: not an argument of list; one of: --help, --limit, --where, output_dir=",
    }.items():
        assert listed(*words, code=2).startswith(f"runner: {said}")


def test_damaged_runs_are_listed_and_told_and_newer_ones_are_told(run, listed, capsys, tmp_path):
    damaged, newer = run("2025-01-30"), run("2025-01-31")
    path = damaged / journal.NAME
    path.write_bytes(path.read_bytes()[:-40] + b'\n{"record":"row"}\n[]\n')
    path = newer / journal.NAME
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2'))
    assert cli.main(["list", f"output_dir={tmp_path}"]) == 0
    printed = capsys.readouterr()
    assert "17 of 18" in printed.out
    assert str(newer) not in printed.out
    assert printed.err.splitlines()[0] == f"runner: {damaged}: 3 records of its journal cannot be read"
    assert printed.err.splitlines()[1].startswith(f"runner: {newer}: this run has format 2, ")


def test_a_folder_without_runs_is_one_line(listed, tmp_path):
    line = f"runner: output_dir={tmp_path}: there is no run in it; give output_dir=<folder> of runs\n"
    assert listed(code=2) == line


def test_a_folder_is_not_changed(run, listed):
    folder = run("2025-01-31")
    before = [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.iterdir())]
    listed()
    assert [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.iterdir())] == before
