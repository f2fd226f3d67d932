"""What benchmarks/faults counts, on rows and beats that are known. The faults themselves it injects."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.runner.faults.__main__ import report
from benchmarks.runner.faults.disk import DISK_CASES, GONE, Broken, disk_part
from benchmarks.runner.faults.grids import (
    LIMIT,
    MARK,
    STATUS,
    alive,
    grid,
    mixture,
    not_as,
    records,
    resumed,
    user_file,
)
from benchmarks.runner.faults.kills import Kills, kills_part
from benchmarks.runner.faults.lock import Handovers, lock_part, overlaps
from benchmarks.runner.faults.mix import mix_part
from runner import config
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Row
from runner.store import journal
from runner.store.journal import Journal


def row(cols, status="ok", attempt=1):
    case = CaseRecord(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), "cpu", 0)
    figures = {"correct": False} if status == "wrong" else {}
    reason = "" if status == "ok" else "injected"
    return Row(case=case, status=status, reason=reason, metrics={**figures, "attempt": attempt})


def rows(injected, cases):
    return [row(cols, STATUS.get(injected.get(cols, ""), "ok")) for cols in range(1, cases + 1)]


def seen(part):
    return {name: (what, word) for name, what, word in part.bars}


def test_the_mixture_has_each_fault_as_often_as_it_should_and_is_always_the_same():
    injected = mixture(1000)
    assert Counter(injected.values()) == {"segfault": 50, "hang": 20, "oom": 30, "wrong": 20, "build": 10}
    assert set(injected) <= set(range(1, 1001))
    assert injected == mixture(1000)


def test_the_command_is_of_that_many_cases_of_the_users_function(tmp_path):
    file = user_file(tmp_path, {3: "hang"})
    plan = config.plan(grid(file, "mixed", 7))
    assert [case.workload.fields["cols"] for case in plan.cases] == [1, 2, 3, 4, 5, 6, 7]
    assert {case.impl.fields["path"] for case in plan.cases} == {f"{file}:mixed"}
    assert plan.launcher.fields["build_limit_s"] == LIMIT
    assert "FAULTS = {3: 'hang'}" in file.read_text()


def test_a_row_that_is_missing_doubled_or_of_another_status_is_counted():
    injected = {2: "segfault", 4: "wrong"}
    right = rows(injected, 5)
    assert not_as(injected, right, 5) == []
    assert not_as(injected, right[:-1], 5) == [5]
    assert not_as(injected, [*right, right[0]], 5) == [1]
    assert not_as(injected, [*right[:3], row(4), right[4]], 5) == [4]


@pytest.mark.parametrize(("mixed_s", "expected"), [(13.0 + 0.5, "PASS"), (13.2 + 0.5, "MISS")])
def test_the_limits_of_hangs_are_not_counted(mixed_s, expected):
    injected = {2: "hang", 3: "segfault"}
    part = mix_part(injected, rows(injected, 5), 5, (9.0, 11.0), mixed_s)
    assert [word for _, _, word in part.bars] == ["PASS", expected]
    assert "| segfault | 1 | crashed | 1 | 0 |" in part.text


def test_a_lost_and_a_doubled_row_and_a_process_left_behind_miss_their_bars():
    injected = {2: "oom"}
    right = rows(injected, 4)
    keys = [one.case.key for one in right]
    good = kills_part("", injected, 4, Kills([0.01, 0.02], [], 2, keys[:3], keys, right), 4.0)
    assert [word for _, _, word in good.bars] == ["PASS"] * 4
    seen = Kills([0.01, 1.0], ["python -m x"], 2, keys, [*keys[1:], keys[1]], right[1:])
    bad = kills_part("", injected, 4, seen, 4.0)
    assert [word for _, _, word in bad.bars] == ["MISS"] * 4
    assert "Left 1 s after it: python -m x." in bad.text


def test_records_are_counted_as_they_stand_and_torn_ones_are_not(tmp_path):
    with Journal(tmp_path) as file:
        for one in (row(1), row(2), row(1)):
            file.row(one)
    whole = (tmp_path / journal.NAME).read_bytes()
    (tmp_path / journal.NAME).write_bytes(whole[:-20])
    assert records(tmp_path) == [row(1).case.key, row(2).case.key]
    (tmp_path / journal.NAME).write_bytes(whole)
    assert records(tmp_path) == [row(1).case.key, row(2).case.key, row(1).case.key]
    assert records(None) == []


def test_two_that_beat_at_once_overlap():
    assert overlaps("1 10\n1 20\n2 30\n2 40\n3 50\n") == 0
    assert overlaps("1 10\n2 19\n1 20\n2 40\n3 50\n") == 1


def test_the_lock_misses_its_bar_if_two_ran_at_once():
    assert seen(lock_part(Handovers([0.3, 0.4], 0), Handovers([0.1], 1)))["no two at once, 2 holders killed"] == (
        "0 overlaps",
        "PASS",
    )
    assert [word for *_, word in lock_part(Handovers([0.3], 1), Handovers([0.1], 1)).bars] == ["MISS"]


def test_of_the_cases_that_were_begun_the_last_alone_may_be_without_a_row():
    whole = Broken([1, 2, 3], {"the journal": [1], "stderr": [2]}, 1, f"{DISK_CASES} ok")
    assert whole.lost == 0
    assert [word for *_, word in disk_part({"full": whole}).bars] == ["PASS"] * 3
    removed = Broken([1, 2, 3], {"the journal": [], "stderr": [1, 2]}, 1, GONE)
    assert [word for *_, word in disk_part({"full": whole, "removed": removed}).bars] == ["PASS"] * 3
    lost = Broken([1, 2, 3], {"the journal": [1]}, 0, "code 1")
    assert lost.lost == 1
    assert [word for *_, word in disk_part({"full": whole, "gone": lost}).bars] == ["MISS"] * 3


def test_what_is_killed_before_its_plan_is_written_is_begun_again_in_its_folder(tmp_path):
    words = ["workload=gelu"]
    assert resumed(words, tmp_path) == words
    folder = tmp_path / "day" / "moment"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").touch()
    assert resumed(words, tmp_path) == ["workload=gelu", f"resume={folder}", "resume.retry=[lost]"]
    (folder / "plan.jsonl").touch()
    assert resumed(words, tmp_path) == [f"resume={folder}", "resume.retry=[lost]"]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_processes_are_found_by_what_they_inherit(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env=os.environ | {MARK: str(tmp_path)}
    ) as process:
        while not any(name.endswith("-c input()") for name in alive(tmp_path)):
            assert process.poll() is None
        assert len(alive(tmp_path)) == 2
        process.communicate(b"\n")
    assert not alive(tmp_path)


def test_the_page_begins_with_all_bars():
    part = lock_part(Handovers([0.3], 0), Handovers([0.1], 1))
    text = report([part, disk_part({"full": Broken([1], {"the journal": [1]}, 1, f"{DISK_CASES} ok")})])
    assert text.index("nothing that was measured is lost") < text.index("## One GPU, two sweeps")
