"""The bars and parts behind benchmarks/grid_cost.py, on rows of known seconds. No GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="benchmarks/grid_cost.py needs its peers to be importable")

from benchmarks.common import Run
from benchmarks.runner.grid_cost import IMPLS, Grid, bars, grid, report
from runner.records.case import CaseRecord, Choice
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store.journal import Journal

PEERS_S = {"do_bench": [0.1, 0.2, 0.3], "do_bench_cudagraph": [0.1], "Timer, blocked_autorange": [0.3]}


def row(impl, seed, wall_s, status="ok"):
    case = CaseRecord(
        Choice("gelu", {"rows": 4096}), Choice(impl, {}), (Choice("benchmark", {}),), Settings("auto", seed)
    )
    timed = {"gpu_us": 30.0} if status == "ok" else {}
    reason = "" if status == "ok" else "there is no GPU"
    return Row(case=case, status=status, reason=reason, metrics={**timed, "wall_s": wall_s, "first_call_s": 0.5})


def made(seeds=100, case_s=0.25, first_s=4.0, wall_s=72.0):
    rows = [row(impl, seed, case_s if seed else first_s) for seed in range(seeds) for impl in IMPLS]
    return Grid(wall_s, 5.0, tuple(rows), seeds)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["PASS", "PASS"]),
        ({"first_s": 20.0}, ["PASS", "PASS"]),  # apart from the first bar, and within the wall time of the second
        ({"case_s": 0.31}, ["MISS", "PASS"]),
        ({"wall_s": 81.0}, ["PASS", "MISS"]),
    ],
)
def test_the_bars(changes, expected):
    assert [word for _, _, word in bars(made(**changes))] == expected


def test_the_report_has_every_table():
    text = report(made(), made(case_s=0.05, wall_s=25.0), PEERS_S)
    assert text.count("\n## ") == 4
    assert "200 cases of GELU, 4096 x 4096 float32: torch and triton, 100 seeds, 100 comparisons." in text


def ran(folder, rows, compared):
    folder.mkdir()
    batches = {one.case.key: [30.0] * 10 for one in rows}
    with Journal(folder) as journal:
        for _ in range(compared):
            journal.rounds(PairedRounds(batches, dict.fromkeys(batches, "graph_timestamps")))
        journal.rounds(PairedRounds(reason="no paired rounds: turned off, or calls are too slow"))
    return Run(10.0, 5.0, folder, tuple(rows))


def test_a_run_is_taken_only_if_all_was_timed_and_compared(tmp_path):
    rows = [row(impl, 0, 0.3) for impl in IMPLS]
    assert grid(ran(tmp_path / "one", rows, 1), 1).compared == 1
    with pytest.raises(RuntimeError, match="1 of 2 pairs compared"):
        grid(ran(tmp_path / "two", rows, 1), 2)
