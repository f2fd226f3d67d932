"""A session loses no row, whatever happens to its folder."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runner.cli.run import conclude
from runner.device.used_paths import ALL, FILES
from runner.records.bad_input import BadInput
from runner.records.case import Choice
from runner.records.plan import Plan, Resume
from runner.records.row import Row
from runner.store import journal, run_folder
from runner.store import session as session_module
from runner.store.session import Session


@pytest.fixture
def plan(case, tmp_path):
    return Plan(
        cases=tuple(case(cols=cols) for cols in range(4)),
        name="x",
        baseline=None,
        output_dir=str(tmp_path / "outputs"),
        launcher=Choice("local", {}),
        log=(),
    )


@pytest.fixture
def session(plan):
    with Session(plan, ["workload=x"], lambda: None) as begun:
        yield begun


def do(session, count):
    for case in session.plan.cases[:count]:
        session.started(case)
        session.done(Row(case=case, status="ok", metrics={"wall_us": 1.0}, fingerprint={FILES: ALL}))


def done_and_settled(session, case):
    session.done(Row(case=case, status="ok"))
    session.settle()


def test_a_session_that_has_ended_is_extended_without_being_read_again(plan, case, monkeypatch):
    more = replace(plan, cases=(*plan.cases[1:], *(replace(one, replica=1) for one in plan.cases[:2])))
    with Session(plan, ["workload=x"], lambda: None) as session:
        do(session, 4)
    before = session.folder.joinpath(journal.NAME).read_bytes()
    monkeypatch.setattr(journal, "load", None)
    monkeypatch.setattr(run_folder, "check_owner", None)
    session.extend(more)
    assert session.cases == list(more.cases[3:])
    assert session.summary() == []
    with session, pytest.raises(BadInput, match="is being written by process"):
        journal.Journal(session.folder)
    session.extend(more)
    with session:
        for one in session.cases:
            session.started(one)
            session.done(Row(case=one, status="ok", metrics={"wall_us": 2.0}))
    monkeypatch.undo()
    assert [row.case for row in session.grid()[0]] == list(more.cases)
    assert [row.time_us for row in session.grid()[0]] == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert session.folder.joinpath(journal.NAME).read_bytes().startswith(before)
    assert len(journal.load(session.folder).rows) == 6
    assert len(run_folder.read_plan(session.folder).cases) == 6
    assert run_folder.locate("last", plan.output_dir) == session.folder


def full(monkeypatch, what="write"):
    def refuse(file, data=None):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, what, refuse)


def test_a_row_has_a_fingerprint_and_the_number_of_attempts(session):
    case = session.plan.cases[0]
    session.started(case)
    session.started(case)
    row = session.done(Row(case=case, status="ok"))
    assert row.metrics["attempt"] == 2
    assert row.fingerprint["torch"]
    assert journal.read_rows(session.folder) == [row]


def test_a_folder_has_its_plan_before_its_journal(plan, monkeypatch):
    found = []

    def begin(folder):
        found.extend(sorted(path.name for path in folder.iterdir()))
        return journal.Journal(folder)

    monkeypatch.setattr(session_module, "Journal", begin)
    with Session(plan, ["workload=x"], lambda: None):
        assert found == [run_folder.CONFIGS, run_folder.ENVIRONMENT, run_folder.PLAN]


def refused(plan, *, after=0):
    """Return the folder of a run of ``plan`` that is refused after the first ``after`` cases."""
    session = Session(plan, ["workload=x"], lambda: None)
    with suppress(BadInput), session:
        do(session, after)
        raise BadInput("launcher.gpus=3: no such GPU")
    return session.folder


def test_a_run_that_is_refused_leaves_no_folder(plan, tmp_path):
    assert not refused(plan).exists()
    assert not list((tmp_path / "outputs").iterdir())


@pytest.mark.parametrize("begin", [lambda run: run.started(run.plan.cases[0]), lambda run: run.ready({}, "GPU-x")])
def test_a_run_that_has_begun_keeps_its_folder(plan, begin):
    session = Session(plan, ["workload=x"], lambda: None)
    with suppress(BadInput), session:
        begin(session)
        raise BadInput("impl.path: there is no such file")
    assert session.folder.exists()


def test_rows_stay_when_a_run_or_its_resumption_is_refused(plan):
    folder = refused(plan, after=1)
    assert len(journal.read_rows(folder)) == 1
    again = replace(plan, resume=Resume(of=str(folder), retry=()))
    assert refused(again) == folder
    assert len(journal.read_rows(folder)) == 1


@pytest.mark.parametrize("what", ["write", "fdatasync"])
def test_rows_that_cannot_be_written_are_printed_as_json_lines(session, monkeypatch, capsys, what):
    do(session, 2)
    session.settle()
    session.started(session.plan.cases[2])
    with monkeypatch.context() as disk:
        full(disk, what)
        with pytest.raises(OSError, match="No space left") as caught:
            done_and_settled(session, session.plan.cases[2])
    first, second = session.give_up(caught.value)
    assert first == f"the run in {session.folder} cannot go on: No space left on device. No further case is started"
    printed = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert second.startswith(f"{len(printed)} row")
    lost = session.rows[-1:] if what == "write" else session.rows  # after a failed fdatasync any row may be lost
    assert [Row.from_record(row) for row in printed] == lost


def truncated(folder):
    os.truncate(folder / journal.NAME, 10)
    return "its rows.jsonl has been truncated"


def removed(folder):
    shutil.rmtree(folder)
    return "its folder has been removed or renamed"


def renamed(folder):
    folder.rename(folder.with_name("mine"))
    return "its folder has been removed or renamed"


def replaced(folder):
    (folder / journal.NAME).rename(folder / "mine")
    shutil.copy(folder / "mine", folder / journal.NAME)
    return "its rows.jsonl has been replaced"


def linked(folder):
    (folder / journal.NAME).rename(folder / "mine")
    (folder / journal.NAME).symlink_to("mine")
    return "its rows.jsonl has been replaced"


@pytest.mark.parametrize("how", [truncated, removed, renamed, replaced, linked])
def test_a_run_whose_records_are_lost_stops_at_the_next_and_prints_all_rows(session, capsys, how):
    do(session, 2)
    why = how(session.folder)
    with pytest.raises(FileNotFoundError, match=why) as caught:
        session.started(session.plan.cases[2])
    with pytest.raises(FileNotFoundError, match=why):
        session.settle()  # it is noticed also after the last record
    first, second = session.give_up(caught.value)
    assert first == f"the run in {session.folder} cannot go on: {why}. No further case is started"
    assert second == "2 rows could not be saved; they are printed above as JSON lines, to be copied"
    printed = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [Row.from_record(row) for row in printed] == session.rows


def test_what_others_append_to_the_journal_does_not_stop_the_run(session):
    do(session, 1)
    with open(session.folder / journal.NAME, "a") as other:  # as where the file system has no locks
        other.write('{"record":"notice"}\n')
    do(session, 2)
    session.settle()
    assert len(journal.read_rows(session.folder)) == 2


@pytest.mark.parametrize("when", ["before another row", "after the last row"])
def test_a_row_that_a_case_appends_for_another_does_not_count(plan, when):
    with Session(plan, ["workload=x"], lambda: None) as session:
        do(session, 2)
        own = session.rows[0]
        forged = replace(own, metrics={"wall_us": 0.001})
        with open(session.folder / journal.NAME, "a") as other:
            other.write(json.dumps({"record": "row", **forged.to_record()}) + "\n")
        if when == "before another row":
            session.started(plan.cases[2])
        warning = session.settle()
    assert warning == "another process appended a row to rows.jsonl; this run's own count"
    assert journal.load(session.folder).rows[own.case.key].metrics == own.metrics
    assert len(journal.read_rows(session.folder)) == 2


def test_a_row_that_is_appended_after_the_last_look_does_not_count(plan):
    with Session(plan, ["workload=x"], lambda: None) as session:
        do(session, 1)
        session.settle()
        forged = replace(session.rows[0], metrics={"wall_us": 0.001})
        with open(session.folder / journal.NAME, "a") as other:
            other.write(json.dumps({"record": "row", **forged.to_record()}) + "\n")
    assert journal.read_rows(session.folder)[0].metrics == session.rows[0].metrics


def test_an_error_between_rows_costs_no_row(session, monkeypatch):
    do(session, 2)
    with monkeypatch.context() as disk:
        full(disk)
        with pytest.raises(OSError, match="No space left") as caught:
            session.started(session.plan.cases[2])
    first, second = session.give_up(caught.value)
    assert first == "stopped by an error of the system: No space left on device. No further case is started"
    assert second == f"All 2 rows are in the journal; to go on: resume={session.folder}"


def test_a_folder_that_cannot_be_written_is_bad_input(plan, tmp_path, monkeypatch):
    (tmp_path / "outputs").write_text("in the way")
    with pytest.raises(BadInput, match=r"output_dir=.*: cannot write there: "):
        Session(plan, [], lambda: None)


def test_a_resumed_session_has_the_rows_of_all_sessions_in_the_order_of_the_plan(plan):
    with Session(plan, [], lambda: None) as first:
        for case in reversed(plan.cases[2:]):
            first.started(case)
            first.done(Row(case=case, status="ok", fingerprint={FILES: ALL}))
    again = Plan(**{**vars(plan), "resume": Resume(of=str(first.folder))})
    with Session(again, [], lambda: None) as second:
        assert second.cases == list(plan.cases[:2])
        do(second, 2)
        rows, _ = second.grid()
        assert [row.case for row in rows] == list(plan.cases)
        assert len(second.everything()) == 4
        with pytest.raises(BadInput, match="is being written by"):
            Session(again, [], lambda: None)
    assert [row.case for row in journal.read_rows(first.folder)] == [plan.cases[i] for i in (3, 2, 0, 1)]


def test_a_resume_without_cases_to_run_changes_no_file(plan):
    with Session(plan, [], lambda: None) as first:
        do(first, 4)
    before = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    with Session(Plan(**{**vars(plan), "resume": Resume(of=str(first.folder))}), [], lambda: None) as second:
        assert second.cases == []
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == before


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (BrokenPipeError(), pytest.raises(BrokenPipeError)),  # as with | head
        (OSError(errno.ENOSPC, "No space left on device"), contextlib.nullcontext()),
    ],
    ids=["a pipe that is closed", "a disk that is full"],
)
def test_what_cannot_be_printed_takes_nothing_from_the_loggers(session, monkeypatch, error, raised):
    class Closed(io.StringIO):
        def write(self, text):
            raise error

    do(session, 2)
    monkeypatch.setattr(sys, "stdout", Closed())
    heard = []
    with raised:
        conclude(session, {"mine": SimpleNamespace(publish=lambda folder: heard.append(folder) or [])})
    assert heard == [session.folder]
    assert (session.folder / "rows.csv").exists()


def test_of_a_run_in_which_nothing_was_done_no_logger_hears(session, capsys):
    """Ctrl-C in the first second must not leave an empty run at W&B; its resumption is heard of."""
    heard = []
    logger = SimpleNamespace(publish=lambda folder: heard.append(folder) or [])
    conclude(session, {"mine": logger})
    assert heard == []
    assert "4 cases: no case done, 4 not run." in capsys.readouterr().out
    do(session, 1)
    conclude(session, {"mine": logger})
    assert heard == [session.folder]
