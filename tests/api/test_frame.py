"""Runs read back as one DataFrame: which run a line is of, against what, and what is no run."""

from __future__ import annotations

import json
import re
import resource
import shutil
from dataclasses import replace

import pytest

import runner
from runner.api import frame
from runner.findings.flat import flat_records
from runner.findings.lines import derive_lines
from runner.records.bad_input import BadInput
from runner.records.case import CaseRecord, Choice
from runner.records.plan import Plan
from runner.records.row import Row
from runner.records.settings import Settings
from runner.report.flat_formats import csv_text
from runner.report.output import ROWS, keep
from runner.store import run_folder
from runner.store.journal import Journal


def row(impl, us, cols=8, **fields):
    case = CaseRecord(
        Choice("gelu", {"cols": cols}), Choice(impl, fields), (Choice("benchmark", {}),), Settings("cpu", 0)
    )
    return Row(case=case, status="ok", metrics={"wall_us": us, "correct": True})


@pytest.fixture
def made(tmp_path):
    """``made("2025-01-30", rows, commit="abc")``: the folder of a run at noon."""

    def make(day, rows, baseline=None, commit=None):
        folder = tmp_path / "outputs" / day / "12-00-00-gelu"
        folder.mkdir(parents=True)
        plan = Plan(
            cases=tuple(one.case for one in rows),
            name="gelu",
            baseline=baseline,
            output_dir="outputs",
            launcher=Choice("local", {}),
            log=(),
        )
        run_folder.write_plan(folder, plan, plan.cases)
        (folder / run_folder.ENVIRONMENT).write_text(json.dumps({"commit": commit}))
        with Journal(folder) as journal:
            for one in rows:
                journal.row(one)
        return folder

    return make


def test_the_same_case_of_two_runs_is_two_lines_each_with_its_run_and_commit(made):
    rows = row("torch", 4.0), row("torch", 2.0)
    rows = [replace(one, metrics={**one.metrics, "commit": name}) for one, name in zip(rows, ("a1", "b2"), strict=True)]
    runs = [made(f"2025-01-3{day}", [one]) for day, one in enumerate(rows)]
    table = frame.load(*runs)
    assert list(table.columns[:3]) == ["run", "commit", "workload"]
    assert list(table["commit"]) == ["a1", "b2"]
    wide = table.pivot(index="workload.cols", columns="run", values="time_us")
    assert wide.to_dict("records") == [{"2025-01-30/12-00-00-gelu": 4.0, "2025-01-31/12-00-00-gelu": 2.0}]


def test_one_run_has_these_columns_too_from_wherever_it_is_read(made, monkeypatch):
    monkeypatch.chdir(made("2025-01-30", [row("torch", 4.0)]))
    table = frame.load(".")
    assert table.loc[0, ["run", "commit"]].to_list() == ["2025-01-30/12-00-00-gelu", None]


def test_a_row_has_the_commit_of_its_own_file_or_none(made):
    own, without = row("file", 4.0, path="k.py:f"), row("torch", 4.0)
    own = replace(own, metrics={**own.metrics, "repository": "mine", "commit": "c3", "dirty": True})
    table = frame.load(made("2025-01-30", [own, without], commit="a1"))
    assert table["commit"].fillna("").to_list() == ["c3", ""]
    assert table["dirty"][0]


def test_each_run_keeps_its_own_baseline_unless_one_is_given_for_all(made):
    rows = [row("naive", 8.0), row("torch", 2.0)]
    runs = made("2025-01-30", rows, baseline="naive"), made("2025-01-31", rows)
    assert list(frame.load(*runs)["speedup"]) == [1.0, 4.0, 0.25, 1.0]
    assert list(frame.load(*runs, baseline="naive")["speedup"]) == [1.0, 4.0, 1.0, 4.0]
    with pytest.raises(BadInput, match="baseline=triton: not in this sweep; one of: naive, torch"):
        frame.load(*runs, baseline="triton")


def test_what_varies_only_between_runs_is_told_in_the_label(made):
    runs = [made(f"2025-01-3{i}", [row("compiled", 1.0, of=of)]) for i, of in enumerate(("naive", "torch"))]
    assert list(frame.load(*runs)["implementation"]) == ["compiled(of=naive)", "compiled(of=torch)"]
    assert list(frame.load(runs[0])["implementation"]) == ["compiled"]


def test_a_run_without_rows_adds_none(made):
    empty, one = made("2025-01-30", []), made("2025-01-31", [row("torch", 1.0)])
    assert len(frame.load(empty)) == 0
    assert list(frame.load(empty, one)["run"]) == ["2025-01-31/12-00-00-gelu"]


def test_whole_numbers_stay_whole_where_other_rows_have_none(made):
    case = CaseRecord(
        Choice("matmul", {"size": 4096}), Choice("torch", {}), (Choice("benchmark", {}),), Settings("cpu", 0)
    )
    other = Row(case=case, status="ok", metrics={"wall_us": 2.0, "samples": 20})
    folder = made("2025-01-30", [row("torch", 4.0, cols=1000), other])
    written = frame.load(folder)[["workload.cols", "workload.size", "samples", "wall_us"]].to_csv(index=False)
    assert written.splitlines()[1:] == ["1000,,,4.0", ",4096,20,2.0"]
    assert frame.load(folder)["workload.size"].sum() == 4096


def test_a_folder_that_is_no_run_says_what_to_give(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made("2025-01-30", [row("torch", 1.0)])
    made("2025-01-31", [row("torch", 1.0)])
    no_run = "it holds no rows.jsonl, so it is not the folder of a run"
    newest = "outputs/2025-01-31/12-00-00-gelu"
    give = f"give {newest}, or another of python -m runner list"
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").touch()
    for folder, line in {
        "outputs": f"outputs: {no_run}; {give}",
        "outputs/2025-01-30": f"outputs/2025-01-30: {no_run}; {give.replace('31', '30')}",
        "outputs/2025-01-30/12-00": f"outputs/2025-01-30/12-00: there is no such folder; {give.replace('31', '30')}",
        "mine": f"mine: {no_run}; {give}",
        "file": f"file: it is a file; {give}",
        "outputs/2024-01-01/00-00-00-gelu": f"outputs/2024-01-01/00-00-00-gelu: there is no such folder; {give}",
    }.items():
        with pytest.raises(BadInput, match=f"^{re.escape(line)}$"):
            frame.load(newest, folder)
    with pytest.raises(BadInput, match=r"^no folder is given; give one or more, as outputs/<date>/<time>-<name>$"):
        frame.load()


def test_runs_of_two_machines_at_one_time_are_told_apart(made, tmp_path):
    here = made("2025-01-30", [row("torch", 4.0)])
    there = tmp_path / "there" / "2025-01-30" / here.name
    shutil.copytree(here, there)
    assert list(frame.load(here, there)["run"]) == [str(here), str(there)]


def test_an_unknown_column_of_another_version_is_kept(made):
    folder = made("2025-01-30", [row("torch", 4.0), row("naive", 8.0)])
    journal = folder / "rows.jsonl"
    journal.write_text(journal.read_text().replace('"wall_us":8.0', '"of_old_us":8.0'))
    found = frame.load(folder).set_index("impl")
    assert found["wall_us"]["torch"] == 4.0
    assert found["of_old_us"]["naive"] == 8.0


@pytest.fixture
def disk_of_1000_bytes():
    """Files end there, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_on_a_full_disk_the_csv_stays_as_it_was(tmp_path, disk_of_1000_bytes):
    few, many = ([row("torch", 4.0, cols) for cols in range(count)] for count in (1, 50))

    def keep_rows(rows):
        return keep(tmp_path / ROWS, csv_text(flat_records(derive_lines(rows, None))))

    (said,) = keep_rows(many)
    assert said == f"{tmp_path / 'rows.csv'} cannot be written: File too large"
    assert not [*tmp_path.iterdir()]
    assert keep_rows(few) == []
    before = (tmp_path / "rows.csv").read_text()
    assert keep_rows(many) == [said]
    assert [path.read_text() for path in tmp_path.iterdir()] == [before]


def test_a_pattern_names_all_runs_below_a_folder(made, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for day in ("2025-01-31", "2025-01-30"):
        made(day, [row("torch", 4.0)])
    every = ["2025-01-30/12-00-00-gelu", "2025-01-31/12-00-00-gelu"]
    for pattern in ("outputs/**", "outputs/*/*", "out*/2025-01-3?/*-gelu/"):
        assert list(runner.load(pattern)["run"]) == every
    with pytest.raises(BadInput, match=r"outputs/\*: it names no folder of a run; give one"):
        runner.load("outputs/*")
