"""What benchmarks/faults counts, on rows and beats that are known. The faults themselves it injects."""

from __future__ import annotations

import pytest

from benchmarks.runner.faults.__main__ import report
from benchmarks.runner.faults.disk import DISK_CASES, GONE, Broken, disk_part
from benchmarks.runner.faults.grids import (
    STATUS,
    not_as,
)
from benchmarks.runner.faults.kills import Kills, kills_part
from benchmarks.runner.faults.lock import Handovers, lock_part
from benchmarks.runner.faults.mix import mix_part
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings


def row(cols, status="ok", attempt=1):
    case = CaseRecord(Choice("gelu", {"cols": cols}), Choice("torch", {}), (), Settings("cpu", 0))
    figures = {"correct": False} if status == "wrong" else {}
    reason = "" if status == "ok" else "injected"
    return Row(case=case, status=status, reason=reason, metrics={**figures, "attempt": attempt})


def rows(injected, cases):
    return [row(cols, STATUS.get(injected.get(cols, ""), "ok")) for cols in range(1, cases + 1)]


def seen(part):
    return {name: (what, word) for name, what, word in part.bars}


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


def test_the_page_begins_with_all_bars():
    part = lock_part(Handovers([0.3], 0), Handovers([0.1], 1))
    text = report([part, disk_part({"full": Broken([1], {"the journal": [1]}, 1, f"{DISK_CASES} ok")})])
    assert text.index("nothing that was measured is lost") < text.index("## One GPU, two sweeps")
