"""An implementation that cheats in the paired rounds alone: its row is corrected everywhere."""

from __future__ import annotations

import csv
import re

CHEAT = """import sys, torch
def f(x):
    frame = sys._getframe()
    while frame := frame.f_back:
        if frame.f_code.co_name == "paired_rounds":
            return x
    return torch.nn.functional.gelu(x, approximate="tanh")
"""
WORDS = ("workload=gelu", "workload.rows=64", "workload.cols=64", "impl=torch,file", "impl.path=mine.py:f", "-m")
ONE_WRONG = r"2 cases: 1 ok( \(1 .*\))?, 1 wrong"
BRIEF = ("device=cpu", *(f"measure.benchmark.{field}" for field in ("samples=20", "max_s=60", "target_cpu_pct=1e6")))
BRIEF += ("measure.benchmark.paired_rounds=10",)  # ten rounds, if it is busy too


def test_outputs_that_are_wrong_in_the_rounds_make_the_row_wrong(run, tmp_path):
    (tmp_path / "mine.py").write_text(CHEAT)
    result = run(*WORDS, *BRIEF)
    assert result.code == 1, result.out + result.err
    statuses = {row["case"]["impl"]["name"]: (row["status"], row["reason"]) for row in result.rows()}
    assert statuses["torch"] == ("ok", "")
    assert statuses["file"][0] == "wrong"
    assert statuses["file"][1].startswith("in the paired rounds: y: ")
    (line,) = [line for line in result.out.splitlines() if line.startswith("corrected: ")]
    assert "in the paired rounds" in line
    assert re.search(ONE_WRONG, result.out)
    with (result.folder / "rows.csv").open() as file:
        assert sorted(row["status"] for row in csv.DictReader(file)) == ["ok", "wrong"]
    again = run(*WORDS, *BRIEF, f"resume={result.folder}")
    assert re.search(ONE_WRONG, again.out)
