"""The bars and tables behind benchmarks/scaling.py, on rows of known times. No GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.runner.scaling import (
    Grid,
    alone_table,
    bars,
    on,
    own_cpu_s,
    rate_table,
    report,
    times_table,
    until_ended,
    words,
)
from runner import config
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Row

STATE = {"sm_clock_mhz": 1980.0, "power_w": 400.0, "temperature_c": 40, "throttle": "", "wall_s": 4.0}
BEGAN = "2026-11-22T09:00:0"  # and the second that the GPU's index gives


def row(cols, us, index, workload="gelu"):
    case = CaseRecord(Choice(workload, {"cols": cols}), Choice("torch", {}), (), "auto", 0)
    where = {"gpu_index": index, "gpu_uuid": f"GPU-{index}", "started_at": f"{BEGAN}{index}.250+00:00"}
    return Row(case=case, status="ok", metrics={"gpu_us": us, **where, **STATE})


def made(count, cases_s, slower=1.0, cases=16):
    """On the last GPU every case takes ``slower`` times as long."""
    rows = [row(cols, 10.0 * (slower if cols % count == count - 1 else 1), cols % count) for cols in range(cases)]
    return Grid(4.0, cases_s, 4.0 + cases_s + 1.0, 0.5, 0.2, {one.case.key: one for one in rows})


def alone(index, us=10.0):
    rows = [row(1, us, index), row(1, 50.0, index, "matmul")]
    return Grid(4.0, 1.0, 6.0, 0.3, 0.2, {one.case.key: one for one in rows})


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_command_is_of_that_many_cases_on_those_gpus():
    plan = config.plan(words(400, range(4)))
    assert len(plan.cases) == 400
    assert len({case.problem for case in plan.cases}) == 200
    assert plan.launcher.fields["gpus"] == "0,1,2,3"
    assert len(config.plan(words(4, [0])).cases) == 4
    assert str(config.plan([*words(4, [0])[:-1], *on([3])]).launcher.fields["gpus"]) == "3"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({1: made(1, 80.0)}, ["", "", ""]),
        ({1: made(1, 80.0), 2: made(2, 40.0)}, ["", "", "PASS"]),
        ({1: made(1, 80.0), 4: made(4, 21.0), 8: made(8, 10.6)}, ["PASS", "PASS", "PASS"]),
        ({1: made(1, 80.0), 4: made(4, 21.1), 8: made(8, 10.7)}, ["MISS", "MISS", "PASS"]),
        ({1: made(1, 80.0), 4: made(4, 20.0, slower=0.98)}, ["PASS", "", "MISS"]),
    ],
)
def test_the_bars(found, expected):
    assert [word for *_, word in bars(found)] == expected


def test_the_rate_is_from_the_first_case_on():
    text = rate_table({1: made(1, 80.0), 4: made(4, 20.0)})
    seen = cells(text, "4")[1:]
    assert seen == ["48.0", "4.00", "20.0", "4000.0", "1000.0", "4.00", "25.0", "3.40", "0.500", "12.50"]


def test_times_are_against_the_same_case_on_one():
    text = times_table({1: made(1, 80.0), 2: made(2, 40.0, slower=1.02)})
    lines = [line for line in text.splitlines() if line.startswith("| 2 |")]
    assert lines == ["| 2 | 0 | 8 | 1.0000 | 1.0000 | 1.0000 | 0 |", "| 2 | 1 | 8 | 1.0200 | 1.0200 | 1.0200 | 8 |"]


def test_gpus_alone_are_against_the_first():
    text = alone_table({0: alone(0), 1: alone(1, us=10.1)})
    assert cells(text, "1") == ["1", "GPU-1", "10.100", "1.0100", "50.000", "1.0000"]


def test_the_report_has_every_table():
    text = report({1: made(1, 80.0), 2: made(2, 40.0)}, {0: alone(0), 1: alone(1)})
    assert text.count("\n## ") == 6
    assert "| 2 | 1 | 1980 | 400 | 40 | 0 | 1.00 |" in text


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_the_parents_time_is_without_its_childrens():
    bare = [sys.executable, "-I", "-S", "-c"]  # whose start costs little
    burn = "import time\nend = time.process_time() + 0.75\nwhile time.process_time() < end: pass"
    with subprocess.Popen([*bare, burn]) as process:
        list(until_ended(process.pid, 60.0))
        assert own_cpu_s(process.pid) > 0.65
    parent = f"import os; os.waitpid(os.posix_spawn({sys.executable!r}, {[*bare, burn]!r}, os.environ), 0)"
    with subprocess.Popen([*bare, parent]) as process:
        list(until_ended(process.pid, 60.0))
        assert own_cpu_s(process.pid) < 0.35
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is not None


def test_what_does_not_end_is_not_waited_for_for_ever():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(TimeoutError):
            list(until_ended(process.pid, 0.05))
        process.communicate(b"\n")
