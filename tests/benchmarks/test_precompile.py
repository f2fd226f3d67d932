"""The bars and tables behind benchmarks/precompile.py, on rows of known times. No GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common import Run
from benchmarks.runner.precompile import (
    AGAIN,
    AHEAD,
    COLD,
    IMPLS,
    Grid,
    bars,
    grid,
    report,
)
from runner.records.case import CaseRecord, Choice
from runner.records.row import Row
from runner.records.settings import Settings


def row(cols, us, impl="triton", **metrics):
    fields = {"rows": 4096, "cols": cols, "dtype": "float32"}
    case = CaseRecord(Choice("gelu", fields), Choice(impl, {}), (), Settings("auto", 0))
    figures = {"gpu_us": us, "low_us": us * 0.998, "high_us": us * 1.002, "wall_s": 1.0, "first_call_s": 0.5}
    return Row(case=case, status="ok", metrics=figures | metrics)


def made(wall_s, times, **metrics):
    rows = [row(cols, us, impl, **metrics) for impl in IMPLS for cols, us in enumerate(times, 1)]
    return Grid(wall_s, 5.0, {one.case.key: one for one in rows})


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("wall_s", "times", "expected"),
    [
        (20.0, [10.0, 20.0, 30.0], ["PASS", "PASS", "PASS"]),
        (21.0, [10.0, 20.1, 29.8], ["MISS", "PASS", "PASS"]),
        (20.0, [10.3, 20.6, 30.6], ["PASS", "MISS", "MISS"]),
    ],
)
def test_the_bars(wall_s, times, expected):
    found = {COLD: made(40.0, [10.0, 20.0, 30.0]), AHEAD: made(wall_s, times), AGAIN: made(10.0, [1.0] * 3)}
    assert bars(found)[0][1].endswith("in the caches: 4.00 x")
    assert [word for *_, word in bars(found)] == expected


def test_the_report_has_every_table_and_counts_what_came_ahead():
    found = {
        COLD: made(40.0, [10.0, 20.0]),
        AHEAD: made(20.0, [10.0, 20.0], precompile_s=3.0),
        AGAIN: made(9.0, [10.0, 20.0]),
    }
    text = report(found)
    assert text.count("\n## ") == 5
    assert "4 cases were compiled ahead, in 12.0 s" in text
    seconds = text.partition("## Times")[0]
    assert cells(seconds, AHEAD)[1:] == ["20.0", "5.00", "4.00", "2.00", "0.00", "4"]
    assert cells(text, "gelu cols=1 triton")[1:] == ["10.0", "1.0000", "1.0000"]
    of_a_case = text.partition("## Seconds of a case")[2]
    assert cells(of_a_case, "gelu, triton")[1:] == ["2", "1.00", "0.00", "0.500", "0.00", "0.00", "0.500"]
    assert "No case was compiled ahead" in report({**found, AHEAD: found[AGAIN]})


def test_a_run_is_taken_only_if_every_case_was_timed_on_a_gpu():
    whole = Run(1.0, 0.5, Path(), (row(1, 10.0), row(2, 20.0)))
    without = Row(case=row(3, 1.0).case, status="unsupported", reason="there is no kernel")
    assert len(grid(Run(1.0, 0.5, Path(), (*whole.rows, without))).rows) == 2
    failed = Row(case=row(3, 1.0).case, status="error", reason="it fails")
    with pytest.raises(RuntimeError, match="1 of 2 cases not timed on a GPU: it fails"):
        grid(Run(1.0, 0.5, Path(), (row(1, 10.0), failed)))
