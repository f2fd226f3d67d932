"""The bars and tables behind benchmarks/profilers.py, on rows of known figures. No GPU."""

from __future__ import annotations

import pytest

from benchmarks.profilers.agreement import TIMES, bars, ratio, report
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings


def row(workload="softmax", impl="triton", cols=4096, **metrics):
    case = CaseRecord(Choice(workload, {"cols": cols}), Choice(impl, {}), (), Settings("cuda", 0))
    figures = {
        "gpu_us": 100.0,
        "pct_of_measured_peak": 99.0,
        "pct_datasheet": 90.0,
        "bytes_min": 2**30,
    } | dict.fromkeys(TIMES.values(), 101.0)
    return Row(case=case, status="ok", metrics=figures | metrics)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["PASS", "PASS", "PASS", "PASS"]),
        ({"profile_gpu_us": 103.1}, ["MISS", "PASS", "PASS", "PASS"]),
        ({"nsys_gpu_us": None}, ["PASS", "MISS", "PASS", "PASS"]),
        ({"dram_pct": 84.0}, ["PASS", "PASS", "PASS", "MISS"]),
    ],
)
def test_the_bars(changes, expected):
    rows = [row("gelu", "torch"), row(**({"dram_pct": 88.0} | changes))]
    assert [word for *_, word in bars(rows, list(TIMES))] == expected


def test_a_profiler_that_saw_nothing_has_no_ratio_and_its_reason_is_told():
    why = "nsys: it is not there; install it"
    blind = row(nsys_gpu_us=None, not_measured=why, cupti_us=99.0, sm_clock_mhz=1980.0)
    assert ratio(blind, "nsys") is None
    assert ratio(blind, "ncu") == pytest.approx(1.01)
    text = report([blind, row("gelu")], ["profile", "nsys"])
    assert f"Not measured: {why}" in text
    assert "| softmax triton | 100 | 0.9900 | 1.0100 |  | 1980 |  |" in text
