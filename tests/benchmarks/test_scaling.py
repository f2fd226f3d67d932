"""The bars and tables behind benchmarks/scaling.py, on rows of known times. No GPU."""

from __future__ import annotations

import pytest

from benchmarks.runner.scaling import (
    Grid,
    bars,
    report,
)
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings

STATE = {"sm_clock_mhz": 1980.0, "power_w": 400.0, "temperature_c": 40, "throttle": "", "wall_s": 4.0}
BEGAN = "2026-11-22T09:00:0"  # and the second that the GPU's index gives


def row(cols, us, index, workload="gelu"):
    case = CaseRecord(Choice(workload, {"cols": cols}), Choice("torch", {}), (), Settings("auto", 0))
    where = {"gpu_index": index, "gpu_uuid": f"GPU-{index}", "started_at": f"{BEGAN}{index}.250+00:00"}
    return Row(case=case, status="ok", metrics={"gpu_us": us, **where, **STATE})


def made(count, cases_s, slower=1.0, cases=16):
    """On the last GPU every case takes ``slower`` times as long."""
    rows = [row(cols, 10.0 * (slower if cols % count == count - 1 else 1), cols % count) for cols in range(cases)]
    return Grid(4.0, cases_s, 4.0 + cases_s + 1.0, 0.5, 0.2, {one.case.key: one for one in rows})


def alone(index, us=10.0):
    rows = [row(1, us, index), row(1, 50.0, index, "matmul")]
    return Grid(4.0, 1.0, 6.0, 0.3, 0.2, {one.case.key: one for one in rows})


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


def test_the_report_has_every_table():
    text = report({1: made(1, 80.0), 2: made(2, 40.0)}, {0: alone(0), 1: alone(1)})
    assert text.count("\n## ") == 6
    assert "| 2 | 1 | 1980 | 400 | 40 | 0 | 1.00 |" in text
