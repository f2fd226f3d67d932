"""A run's folder is data: whatever stands in a record of it, readers go on and count the record as unreadable."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import orjson
import pytest

from runner.api import frame
from runner.findings.conclusion import conclude
from runner.findings.flat import flat_records
from runner.findings.kept_files import kept_files
from runner.findings.lines import derive_lines
from runner.findings.run import Run
from runner.records import untrusted
from runner.records.bad_input import BadInput
from runner.records.paired_rounds import PairedRounds
from runner.records.plan import Part, Plan, Resume
from runner.report import reproduce
from runner.report.charts import charts
from runner.report.flat_formats import csv_text
from runner.report.terminal import terminal_report
from runner.report.wandb.content import Content, artifact_tables
from runner.store import journal, resume, run_folder
from runner.store.fingerprint import Fingerprints

ODD: tuple[object, ...] = ("fast", "\x1b[31m\u202e", -1, 5e-324, 1e300, [1], {"a": 1}, None, True)


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value within ``value``."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def damaged(record: dict) -> Iterator[tuple[str, bytes]]:
    """Yield ``record`` with one value replaced by an odd one, for each of them."""
    for path in places(record):
        for odd in ODD:
            changed = copy.deepcopy(record)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            yield f"{path} = {odd!r}", json.dumps(changed).encode()


FIGURES = {"low_us": 1.0, "high_us": 1.0, "interval_pct": 1.0, "stat_pct": 0.5, "samples": 20, "min_us": 1.0}
FIGURES |= {"max_abs_err": 1e-6, "err_over_tol": 0.1, "peak_mem_bytes": 4096, "compile_s": 1.0, "wall_s": 2.0}
FIGURES |= {"threads": 2, "instrument": "perf_counter", "not_measured": "nsys: none", "pct_of_measured_peak": 50.0}


@pytest.fixture
def run(made, tmp_path):
    """The folder of a run of two implementations, which were compared, and its plan."""
    cases = [made.case("gelu", impl, {"cols": 8, "dtype": "float32"}) for impl in ("torch", "naive")]
    rows = [made.timed(case, us, **FIGURES) for case, us in zip(cases, (1.0, 3.0), strict=True)]
    rows = [replace(row, files=("files/x/profile/summary.txt",)) for row in rows]
    folder = made.finished(tmp_path / "2025-01-31" / "10-11-12-x", rows)
    (folder / journal.NAME).unlink()
    with journal.Journal(folder) as file:
        for row in rows:
            file.start(row.case)
            file.row(row)
        file.rounds(
            PairedRounds({case.key: [1.0, 1.1] * 5 for case in cases}, {case.key: "perf_counter" for case in cases})
        )
    return folder, Plan(cases=tuple(cases), name="x")


def read_all(folder, plan, contents):
    """Read the folder as the readers of a run do."""
    rows = list(contents.rows.values())
    run = Run(folder, plan, rows, contents.rounds)
    printed = "".join(map(str, terminal_report(run, 200))) + csv_text(flat_records(derive_lines(rows, None, [])))
    assert not {"\x1b", "\u202e"} & {*printed}
    json.dumps([chart.whole() for chart in charts([run])], allow_nan=False)
    conclude(run)
    assert all(map(reproduce.command, run.plan.cases))
    content = Content(run)
    assert content.table()
    assert content.summary()
    assert content.config()
    assert all(content.charts(name) is not None for name in content.workloads)
    assert artifact_tables(folder, rows) == {}


@pytest.mark.parametrize("paired", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_record_with_an_odd_value_is_read_or_counted_as_unreadable(run, paired):
    folder, plan = run
    path, anything = folder / journal.NAME, Resume(ignore=get_args(Part))
    fingerprints = Fingerprints()
    session, *lines = path.read_bytes().splitlines()
    lines = [session, *(line for line in lines if paired or b'"rounds"' not in line)]
    read = unreadable = 0
    for place, line in enumerate(lines[1:], 1):
        for name, odd in damaged(orjson.loads(line)):
            path.write_bytes(b"\n".join([*lines[:place], odd, *lines[place + 1 :]]) + b"\n")
            contents = journal.load(folder)
            work = resume.remaining(plan.cases, contents, anything, fingerprints)
            # Whatever is kept at a resume is in the table, under its own case.
            assert work.kept == {key: row for key, row in contents.rows.items() if row.case in plan.cases}, name
            assert all(key == row.case.key for key, row in contents.rows.items()), name
            unreadable += contents.unreadable
            if not contents.unreadable:
                read_all(folder, plan, contents)
                read += 1
    assert unreadable > 100
    assert read > 50


@pytest.mark.parametrize(
    ("place", "odd"),
    [(("metrics", "wall_us"), "fast"), (("case",), 5), (("device",), [1]), (("files",), [5]), (("fingerprint",), 5)],
)
def test_a_row_with_an_odd_value_runs_again_and_one_line_says_so(run, place, odd):
    folder, plan = run
    path = folder / journal.NAME
    lines = path.read_bytes().splitlines()
    changed = next(line for line in lines if b'"record":"row"' in line and plan.cases[1].key.encode() in line)
    record = inner = orjson.loads(changed)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = odd
    path.write_bytes(path.read_bytes().replace(changed, orjson.dumps(record)))
    contents = journal.load(folder)
    work = resume.remaining(plan.cases, contents, Resume(ignore=get_args(Part)), Fingerprints())
    assert work.again == {plan.cases[1].key: "never done"}
    summary = resume.resume_messages(folder, work, contents.unreadable)
    assert summary[-1] == "  1 unreadable in the journal, damaged or cut off: skipped"
    with pytest.warns(UserWarning, match="unreadable records in its journal, left out: 1"):
        assert list(frame.load(folder)["impl"]) == ["torch"]


def test_a_row_with_damaged_bytes_in_its_middle_runs_again_or_is_in_the_table(run):
    folder, plan = run
    path, fingerprints = folder / journal.NAME, Fingerprints()
    whole = path.read_bytes()
    begin, end = (place for place in (whole.index(b'{"record":"row"'), whole.index(b"\n", whole.index(b'"row"'))))
    for place in range(begin, end, 3):
        for damage in (b"\0\0\0", b"x", b""):
            path.write_bytes(whole[:place] + damage + whole[place + 3 :])
            contents = journal.load(folder)
            work = resume.remaining(plan.cases, contents, Resume(ignore=get_args(Part)), fingerprints)
            assert work.kept == {key: row for key, row in contents.rows.items() if row.case in plan.cases}
            assert (plan.cases[0].key in work.again) == (contents.unreadable > 0)


ODD_PLANS = [b"", b"5\n", b"[]\n", b"{}\n", b"{", b'{"name":"x","baseline":null,"launcher":5,"log":[],"columns":[]}\n']


@pytest.mark.parametrize("plan", ODD_PLANS)
def test_an_odd_plan_and_environment_are_one_line(run, plan):
    folder, _ = run
    (folder / run_folder.PLAN).write_bytes(plan)
    with pytest.raises(BadInput, match=r"plan\.jsonl cannot be read \("):
        frame.load(folder)
    with pytest.raises(ValueError, match=r"Error: .|^\w"):
        run_folder.read_plan(folder)
    for text in ("[]", "5", '{"earlier_sessions": 5}', '{"earlier_sessions": [5]}', '{"commit": [1]}', "{"):
        (folder / run_folder.ENVIRONMENT).write_text(text)
        run = Run(folder, Plan(cases=(), name="x"), [], sessions=run_folder.earlier_sessions(folder))
        assert (run.environment.get("hostname"), run.commits) == (None, "")


def test_cases_of_a_plan_with_odd_values_are_refused(run):
    folder, _ = run
    path = folder / run_folder.PLAN
    head, *lines = path.read_bytes().splitlines()
    for _, odd in damaged(orjson.loads(lines[0])):
        path.write_bytes(head + b"\n" + odd + b"\n")
        with suppress(ValueError):  # or it is another case, which the schema refuses
            run_folder.read_plan(folder)


def test_no_file_out_of_the_folder_is_read_or_uploaded(run, tmp_path):
    folder, plan = run
    (tmp_path / "profile").mkdir()
    for name in ("summary.txt", "kernels.csv"):
        (tmp_path / "profile" / name).write_text("name,secret\na,1\n")
    (folder / "files").symlink_to(tmp_path)
    names = [
        f"{where}/profile/{name}" for where in ("files", "../..", tmp_path) for name in ("summary.txt", "kernels.csv")
    ]
    rows = [replace(row, files=tuple(names)) for row in journal.read_rows(folder)]
    assert not any(kept_files(folder, row) for row in rows)
    assert artifact_tables(folder, rows) == {}
    assert "secret" not in "".join(map(str, terminal_report(Run(folder, plan, rows), 200)))


def test_a_link_in_place_of_a_file_of_the_run_is_not_read(run, tmp_path):
    folder, _ = run
    (folder / journal.NAME).rename(tmp_path / "elsewhere")
    (folder / journal.NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=r"rows\.jsonl cannot be read: "):
        frame.load(folder)


@pytest.mark.parametrize("name", [journal.NAME, run_folder.PLAN])
def test_a_pipe_or_an_endless_line_in_place_of_a_file_is_one_sentence(run, name, monkeypatch):
    folder, _ = run
    written = [(folder / file).read_bytes().splitlines(keepends=True) for file in (journal.NAME, run_folder.PLAN)]
    monkeypatch.setattr(untrusted, "LONGEST", 1 + max(len(line) for lines in written for line in lines))
    assert len(frame.load(folder)) == 2
    with open(folder / name, "ab") as file:
        file.write(b"[" * untrusted.LONGEST)
    with pytest.raises(BadInput, match=rf"{name} cannot be read.*a line of it is longer than"):
        frame.load(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(BadInput, match=r"it is not a regular file|it holds no rows"):
        frame.load(folder)
