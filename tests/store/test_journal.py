"""Every written row can be read again, whatever happens next."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.records.bad_input import BadInput
from runner.records.columns import TIMES
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.store import journal

ROOT = Path(__file__).resolve().parents[2]


def row(case, cols, **parts):
    return Row(case=case(cols=cols), status="ok", **parts)


def test_rows_are_read_in_the_order_in_which_they_were_written(case, tmp_path):
    rows = [row(case, cols) for cols in range(5)]
    with journal.Journal(tmp_path) as file:
        for each in rows:
            file.start(each.case)
            file.row(each)
    assert journal.read_rows(tmp_path) == rows


def test_a_torn_record_costs_no_other_record(case, tmp_path):
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1))
    with open(tmp_path / journal.NAME, "ab") as raw:
        raw.write(b'{"record":"row","case":{"work')
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 2))
    assert [r.case.workload.fields["cols"] for r in journal.read_rows(tmp_path)] == [1, 2]


def lines_of(folder):
    """Read every line as JSON; a torn one raises."""
    with open(folder / journal.NAME) as lines:
        return [json.loads(line)["record"] for line in lines]


def test_every_line_of_a_resumed_run_is_a_record(case, tmp_path):
    for cols in (1, 2):
        with journal.Journal(tmp_path) as file:
            file.start(case(cols=cols))
            file.row(row(case, cols))
    assert lines_of(tmp_path) == ["session", "start", "row"] * 2


@pytest.mark.parametrize("after", [[], [2]], ids=["its end", "a row"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_records_after_a_short_write_are_whole(case, monkeypatch, tmp_path, share, after):
    """The disk may have room again after that."""
    write = os.write

    def short(file, data):
        return write(file, data[: int(share * len(data))])

    with journal.Journal(tmp_path) as file:
        file.start(case(cols=1))
        with monkeypatch.context() as full:
            full.setattr(os, "write", short)
            with pytest.raises(OSError, match="No space left"):
                file.row(row(case, 1))
        for cols in after:
            file.row(row(case, cols))
    found = journal.load(tmp_path)
    assert [r.case.workload.fields["cols"] for r in found.rows.values()] == after
    assert (found.unreadable, found.deaths) == (share > 0, {})  # the session ended in good order
    assert "" not in (tmp_path / journal.NAME).read_text().splitlines()


def test_a_torn_record_of_another_process_costs_no_record_of_this_one(case, tmp_path):
    """Two processes may write one journal if the file system has no locks."""
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1))
        with open(tmp_path / journal.NAME, "ab") as other:
            other.write(b'{"record":"row","case":{"work')
        file.row(row(case, 2))
    assert [r.case.workload.fields["cols"] for r in journal.read_rows(tmp_path)] == [1, 2]


def test_the_last_row_of_a_case_counts_at_the_place_of_the_first(case, tmp_path):
    with journal.Journal(tmp_path) as file:
        for cols, time_us in ((1, 1.0), (2, 5.0), (1, 2.0)):
            file.row(row(case, cols, metrics={"wall_us": time_us}))
    assert [r.time_us for r in journal.read_rows(tmp_path)] == [2.0, 5.0]


def test_a_record_cut_off_at_any_byte_costs_no_other_record(case, tmp_path):
    detail = 'it said {"record":"row"},"end":true}\n'
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1, fingerprint={"torch": "2.13"}))
        before = (tmp_path / journal.NAME).stat().st_size
        file.row(row(case, 2, detail=detail, device='odd "name"'))
    whole = (tmp_path / journal.NAME).read_bytes()
    for end in range(before, len(whole) + 1):
        (tmp_path / journal.NAME).write_bytes(whole[:end])
        with journal.Journal(tmp_path) as file:
            file.row(row(case, 3))
        found = journal.load(tmp_path)
        last = [2] if end >= len(whole) - 1 else []  # only its newline is missing
        assert [r.case.workload.fields["cols"] for r in found.rows.values()] == [1, *last, 3]
        assert found.unreadable == (not last and end > before)
    assert list(found.rows.values())[1].detail == detail


def test_a_comparison_with_a_field_of_a_later_version_is_read(case, tmp_path):
    with journal.Journal(tmp_path) as file:
        file.row(one := row(case, 1))
        file.rounds(rounds := PairedRounds({one.case.key: [1.5] * 10}, {one.case.key: "perf_counter"}))
    path = tmp_path / journal.NAME
    path.write_text(path.read_text().replace('"batches_us"', '"of_a_later_version":1,"batches_us"'))
    assert journal.load(tmp_path).rounds == [rounds]
    assert journal.read_rows(tmp_path) == [one]


def test_a_comparison_holds_until_one_of_its_cases_has_another_row(case, tmp_path):
    one, two = row(case, 1), row(case, 2)
    keys = one.case.key, two.case.key
    both = PairedRounds({key: [1.0] * 10 for key in keys}, dict.fromkeys(keys, "perf_counter"))
    with journal.Journal(tmp_path) as file:
        file.row(one)
        file.row(two)
        file.rounds(both)
        assert journal.load(tmp_path).rounds == [both]
        file.row(two)
        assert [set(rounds.batches_us) for rounds in journal.load(tmp_path).rounds] == [{one.case.key}]
        file.rounds(both)
        assert journal.load(tmp_path).rounds[1] == both


def test_deaths_of_sessions_are_counted_for_the_cases_in_flight(case, tmp_path):
    key = case(cols=1).key

    def dies():
        with journal.Journal(tmp_path) as file:
            file.start(case(cols=1))
            file.start(case(cols=1))  # a second try in the same session
        path = tmp_path / journal.NAME
        *written, _ = path.read_bytes().splitlines(keepends=True)  # a kill leaves no time for the last record
        path.write_bytes(b"".join(written))

    dies()
    assert journal.load(tmp_path).deaths == {key: 1}
    dies()
    found = journal.load(tmp_path)
    assert found.deaths == {key: 2}
    assert found.starts == {key: 4}
    with journal.Journal(tmp_path) as file:
        file.start(case(cols=1))
    assert journal.load(tmp_path).deaths == {key: 2}  # stopped in good order
    with contextlib.suppress(ZeroDivisionError), journal.Journal(tmp_path) as file:
        file.start(case(cols=1))
        raise ZeroDivisionError
    assert journal.load(tmp_path).deaths == {key: 3}  # a death as well
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1))
    assert journal.load(tmp_path).deaths == {}


def test_a_journal_has_one_writer(case, tmp_path):
    with journal.Journal(tmp_path) as file:
        file.begin()
        assert journal.writer(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(BadInput, match=f"is being written by process {os.getpid()} on "):
            journal.Journal(tmp_path)
    assert journal.writer(tmp_path) == ""
    with journal.Journal(tmp_path) as file:
        file.row(row(case, 1))


def test_a_removed_folder_is_an_error_although_writing_would_succeed(case, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with journal.Journal(folder) as file:
        file.row(row(case, 1))
        shutil.rmtree(folder)
        with pytest.raises(FileNotFoundError, match="has been removed or renamed"):
            file.row(row(case, 2))


def test_ten_thousand_rows_are_read_in_a_moment(case, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fdatasync", lambda file: None)
    figures = dict.fromkeys(TIMES, 1.2345678)
    with journal.Journal(tmp_path) as file:
        for cols in range(10_000):
            file.row(row(case, cols, metrics=figures, series={"batches_us": [1.2345678] * 10}))
    started = time.process_time()
    contents = journal.load(tmp_path)
    assert len(contents.rows) == 10_000
    assert time.process_time() - started < 6  # measured: 0.4 s


WRITER = """
import sys
from pathlib import Path
from runner.records.case import CaseRecord, Choice
from runner.store.journal import Journal
from runner.records.row import Row
from runner.records.settings import Settings
with Journal(Path(sys.argv[1])) as journal:
    for cols in range(1000000):
        case = CaseRecord(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), Settings("cpu", 0))
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
        kept = {r.case.workload.fields["cols"] for r in journal.read_rows(folder)}
        assert kept >= set(acknowledged)
