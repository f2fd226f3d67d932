"""The tables behind benchmarks/lecture.py, on rows that are known; and the lecture's harness on a CPU. No GPU."""

from __future__ import annotations

import time

import pytest

from benchmarks.kernels.lecture import (
    IMPLS,
    OPTIONS,
    PUBLISHED_MS,
    Harness,
    lecture_ms,
    report,
)
from runner.findings.lines import derive_lines
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings

DEVICE_US = {"naive": 7700.0, "torch": 710.0, "compiled": 712.0, "triton": 700.0}


def lines():
    rows, compared = [], []
    for op in OPTIONS:
        point = []
        for impl, us in DEVICE_US.items():
            case = CaseRecord(
                Choice(op, {"rows": 16384}), Choice(impl, {}), (Choice("benchmark", {}),), Settings("auto", 0)
            )
            times = {"gpu_us": us, "gpu_warm_us": us - 1, "interval_pct": 0.21, "latency_us": us + 20.0, "host_us": 9.0}
            others = {
                "n_kernels": 9 if impl == "naive" else 1,
                "pct_of_measured_peak": 98.4,
                "first_call_s": 0.25,
                "correct": True,
            }
            point.append(Row(case=case, status="ok", metrics=times | others))
        rows += point
        batches = {one.case.key: [one.time_us * (1 + 1e-4 * (i % 2)) for i in range(10)] for one in point}
        compared.append(PairedRounds(batches, dict.fromkeys(batches, "graph_timestamps")))
    return derive_lines(rows, None, compared)


def heard(times=2):
    extra = {"naive": 0.1, "torch": 0.02, "compiled": 0.09, "triton": 0.06}
    return [
        Harness(
            op,
            impl,
            [DEVICE_US[impl] / 1e3 + extra[impl] * (1 + turn) for turn in range(times)],
            [DEVICE_US[impl] / 1e3 + 10 * extra[impl]] * times,
        )
        for op in OPTIONS
        for impl in IMPLS
    ]


def test_the_report_has_every_part():
    text = report(lines(), heard())
    assert text.count("\n## ") == 3
    assert "in 2 times: gelu 1, softmax 1." in text
    for op, impl in PUBLISHED_MS:
        assert f"| {op} {impl} |" in text


def test_the_harness_takes_the_mean_of_three_after_one(monkeypatch):
    log, clock = [], iter(range(100))
    monkeypatch.setattr(time, "time", lambda: log.append("clock") or float(next(clock) ** 2))
    ms = lecture_ms(lambda: log.append("call"), lambda: log.append("wait"))
    assert log == ["call", "wait", *["clock", "call", "wait", "clock"] * 3]
    assert ms == pytest.approx((1 + 5 + 9) / 3 * 1000)
