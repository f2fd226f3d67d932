"""The tables behind benchmarks/lecture.py, on rows that are known; and the lecture's harness on a CPU. No GPU."""

from __future__ import annotations

import io
import sys
import time

import pytest

from benchmarks.common import ROOT
from benchmarks.kernels.lecture import (
    IMPLS,
    OPTIONS,
    PUBLISHED_MS,
    WORDS,
    Harness,
    figures_table,
    harness,
    harness_table,
    lecture_ms,
    orders_table,
    report,
    shuffles,
    speedup,
    terminal_text,
    traced,
)
from runner import config
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Comparison, Row
from runner.report import derive

DEVICE_US = {"naive": 7700.0, "torch": 710.0, "compiled": 712.0, "triton": 700.0}


def lines():
    rows, compared = [], []
    for op in OPTIONS:
        point = []
        for impl, us in DEVICE_US.items():
            case = CaseRecord(Choice(op, {"rows": 16384}), Choice(impl, {}), (Choice("benchmark", {}),), "auto", 0)
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
        compared.append(Comparison(batches, dict.fromkeys(batches, "graph_timestamps")))
    return derive.lines(rows, None, compared)


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


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_command_is_of_both_operations_and_every_implementation_at_the_lectures_size():
    plan = config.plan(WORDS)
    assert {(case.workload.name, case.impl.name) for case in plan.cases} == set(PUBLISHED_MS)
    assert {(case.workload.fields["rows"], case.workload.fields["cols"]) for case in plan.cases} == {(16384, 16384)}
    assert {case.workload.fields.get("form", "tanh") for case in plan.cases} == {"tanh"}


def test_a_line_has_what_a_caller_waits_and_what_the_gpu_does():
    line = cells(figures_table(lines()), "softmax naive")
    assert line[1:10] == ["7.72", "0.009", "7.7", "0.21", "7.699", "9", "0.250", "98 %", line[9]]
    assert line[9].startswith("0.09221x (0.09")


def test_a_speed_up_has_its_interval_and_its_word():
    found = {line.row.case.impl.name: speedup(line) for line in lines()[:4]}
    assert found["torch"] == "1 (base)"
    assert found["naive"].endswith("), slower")
    assert found["triton"].startswith("1.014x (1.01")
    assert found["triton"].endswith("), faster")
    assert found["compiled"].endswith("), same")


def test_the_harness_stands_beside_what_was_published_and_the_device():
    line = cells(harness_table(lines(), heard(times=3)), "gelu triton")
    assert line == [
        *("gelu triton", "1.85", "0.820 (0.760 to 0.880)", "1.300 (1.300 to 1.300)", "0.700", "+0.120", "+0.600"),
    ]


def test_the_orders_are_those_of_the_figures():
    text = orders_table(lines(), heard(times=1))
    gelu = [line for line in text.splitlines() if line.startswith("| gelu |")]
    assert [line.split("|")[3].strip() for line in gelu] == [
        "torch < compiled < triton < naive",
        "torch < triton < compiled < naive",
        "torch < triton < compiled < naive",
        "triton < torch < compiled < naive",
        "triton < torch < compiled < naive",
    ]
    assert [line.split("|")[4].strip() for line in gelu] == ["1.68", "1.10", "1.77", "1.02", "1.02"]


def test_orders_that_change_from_time_to_time_are_counted():
    assert shuffles(heard(times=2)) == {"gelu": 1, "softmax": 1}
    swapped = [Harness("gelu", "torch", [0.7, 0.8], []), Harness("gelu", "triton", [0.8, 0.7], [])]
    assert shuffles(swapped) == {"gelu": 2}


def test_the_terminals_table_is_shown_as_it_is():
    text = terminal_text(lines())
    assert "★ triton" in text
    assert "% peak" in text
    assert all(line == line.rstrip() for line in text.splitlines())


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


def test_a_tracer_sees_the_lines_of_visible_files_alone_and_goes():
    sink, before = io.StringIO(), sys.gettrace()

    def visible():
        return sorted([2, 1])

    with traced({__file__}, sink):
        visible()
    assert "return sorted([2, 1])" in sink.getvalue()
    assert sys.gettrace() is before
    hidden = io.StringIO()
    with traced({"elsewhere.py"}, hidden):
        visible()
    assert hidden.getvalue() == ""


def test_the_harness_times_an_implementation_and_takes_longer_in_a_tracer():
    found = harness("softmax", "naive", 8, "cpu", 3)
    assert (found.op, found.impl, len(found.plain_ms), len(found.traced_ms)) == ("softmax", "naive", 3, 3)
    assert min(found.traced_ms) > min(found.plain_ms)


@pytest.mark.parametrize("op", OPTIONS)
def test_every_implementation_of_the_page_has_a_kernel(op):
    for impl in {*IMPLS} - {"compiled"}:
        assert (ROOT / "kernels" / op / f"{impl}.py").is_file()
