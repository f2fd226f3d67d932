"""The bars and tables behind benchmarks/profilers.py, on rows of known figures. No GPU."""

from __future__ import annotations

import pytest

from benchmarks.profilers.agreement import GRID, LARGE_BYTES, TIMES, bars, ratio, report, shares
from runner import config
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Row


def row(workload="softmax", impl="triton", cols=4096, **metrics):
    case = CaseRecord(Choice(workload, {"cols": cols}), Choice(impl, {}), (), "cuda", 0)
    figures = {
        "gpu_us": 100.0,
        "pct_of_measured_peak": 99.0,
        "pct_datasheet": 90.0,
        "bytes_min": 2**30,
    } | dict.fromkeys(TIMES.values(), 101.0)
    return Row(case=case, status="ok", metrics=figures | metrics)


def test_there_are_ten_cases_and_more():
    cases = config.plan([*GRID, "measure=[benchmark,profile,nsys,ncu]"]).cases
    assert len(cases) == 10
    assert {case.workload.name for case in cases} == {"gelu", "softmax", "matmul"}


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


def test_shares_are_of_a_copys_rate_and_of_traffic_that_the_cache_does_not_hold():
    assert shares(row(dram_pct=88.0)) == pytest.approx((88.0 * 1.1, 99.0))
    assert shares(row(dram_pct=88.0, bytes_min=LARGE_BYTES / 2)) is None
    assert shares(row(impl="torch", dram_pct=88.0)) is None
    assert shares(row()) is None


def test_a_profiler_that_saw_nothing_has_no_ratio_and_its_reason_is_told():
    why = "nsys: it is not there; install it"
    blind = row(nsys_gpu_us=None, not_measured=why, cupti_us=99.0, sm_clock_mhz=1980.0)
    assert ratio(blind, "nsys") is None
    assert ratio(blind, "ncu") == pytest.approx(1.01)
    text = report([blind, row("gelu")], ["profile", "nsys"])
    assert f"Not measured: {why}" in text
    assert "| softmax triton | 100 | 0.9900 | 1.0100 |  | 1980 |  |" in text


def test_a_case_without_a_time_is_a_line_and_a_miss():
    untimed = Row(case=row().case, status="unsupported", reason="no such GPU", metrics={})
    assert bars([row(), untimed], ["profile"])[0][-1] == "MISS"
    assert "| softmax triton |  |  |" in report([row("gelu"), untimed], ["profile"])
