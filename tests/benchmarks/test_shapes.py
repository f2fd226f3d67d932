"""Random shapes: how they are drawn, and what the tables say, on rows made up here."""

from __future__ import annotations

import sys
from functools import cache

import pytest

import benchmarks.common
from benchmarks.kernels.shapes.__main__ import cases, command, main, runs
from benchmarks.kernels.shapes.draw import OPS, shapes
from benchmarks.kernels.shapes.report import (
    BEST,
    bars_table,
    measured,
    op_table,
    statistics,
)
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.store import run_folder
from runner.store.journal import Journal

OP = OPS["softmax-float32"]
COLUMNS = {"correct": True, "verdict": "ok", "flops": 5e6, "bytes_min": 8e6, "n_kernels": 1, "config": "BLOCK=64"}
PEAK = {"bound": "memory", "pct_of_measured_peak": 40.0}  # in 5 us: 4000 GB/s


@cache
def planned():
    return cases(command(OP, "cuda"), shapes(OP, 1, 3))


def folder_of(top, times_us, *, failed=(), unpaired=(), fingerprint="now"):
    """Write a run with a shape for each of ``times_us``, which are by implementation. Return what is read of it."""
    folder = top / "1" / "2026-01-02" / "03-04-05-shapes"
    folder.mkdir(parents=True)
    worker = {"gpu": {"name": "NVIDIA H100"}, "cpu": "a CPU", "cpu_cores": 1, "torch": "2.11"}
    run_folder.write_environment(folder, {**run_folder.environment([]), "worker": worker})
    problems, labels = planned()
    problems = {shape: problems[shape] for shape in shapes(OP, 1, len(times_us))}
    source = {"a kernel": fingerprint}
    with Journal(folder) as journal:
        for (shape, some), times in zip(problems.items(), times_us, strict=True):
            batches = {}
            for case in some:
                name = labels.label(case.impl)
                if (shape, name) in failed:
                    journal.row(Row(case=case, status="error", reason="it broke", fingerprint=source))
                elif name not in times:
                    journal.row(Row(case=case, status="unsupported", reason="no compiler", fingerprint=source))
                else:
                    figures = {**COLUMNS, **PEAK, "gpu_us": 5.0}
                    journal.row(Row(case=case, status="ok", metrics=figures, fingerprint=source))
                    batches[case.key] = [times[name] * (1 + 0.001 * (n % 3)) for n in range(10)]
            if shape not in unpaired:
                journal.rounds(PairedRounds(batches, dict.fromkeys(batches, "graph_timestamps")))
    return measured(problems, labels, runs(top))


def test_a_ratio_is_that_of_the_faster_peer_for_each_shape(tmp_path):
    times = [
        {"triton": 50.0, "cuda": 40.0, "torch": 100.0, "compiled": 80.0},  # 1.6 x compiled, 2 x
        {"triton": 100.0, "torch": 90.0, "compiled": 120.0},  # 0.9 x torch
    ]
    drawn, found = shapes(OP, 1, 2), folder_of(tmp_path, times)
    own, best = (statistics(OP, found, who) for who in ("triton", BEST))
    assert own.ratios == pytest.approx({drawn[0]: 1.6, drawn[1]: 0.9})
    assert own.mean == pytest.approx(1.2)
    assert own.worst == (pytest.approx(0.9), drawn[1])
    assert own.fifth == pytest.approx(0.935)
    assert best.ratios == pytest.approx({drawn[0]: 2.0, drawn[1]: 0.9})
    text, missed = bars_table({OP: found})
    assert "1.200, bar 1.1 PASS" in text
    assert "0.900, bar 0.97 MISS" in text
    assert "3 of 3 PASS" in text
    assert missed == 2  # the mean of the best is 1.34
    worst, better = op_table(OP, found).splitlines()[4:6]
    assert worst.startswith(f"| {drawn[1][0]}x{drawn[1][1]} | 100 |  | 90.")
    assert "| 0.900 ± 0.00" in worst
    assert "| cuda 2.000 |" in better
    assert "- 1 of 2 shapes without cuda: no compiler" in op_table(OP, found)


def test_what_failed_or_was_not_paired_is_named_and_a_miss(tmp_path):
    drawn = shapes(OP, 1, 3)
    failed = [(drawn[0], "triton"), (drawn[1], "compiled")]
    found = folder_of(tmp_path, [{"triton": 1.0, "torch": 9.0, "compiled": 9.0}] * 3, failed=failed)
    text, missed = bars_table({OP: found})
    assert "2 of 3 MISS" in text
    assert "9.000, bar 1.1 PASS" in text
    assert "| 0.000, bar 0.9 MISS" in text
    assert missed == 3  # the worst of both, and that one is not right
    assert f"- {drawn[0][0]}x{drawn[0][1]} triton: error: it broke" in op_table(OP, found)
    assert f"- {drawn[1][0]}x{drawn[1][1]} compiled: error: it broke" in op_table(OP, found)


def test_the_page_is_kept_for_each_seed(tmp_path, monkeypatch, capsys):
    folder_of(tmp_path / OP.name, [{"triton": 1.0, "torch": 2.0}] * 2)
    monkeypatch.setattr(benchmarks.common, "RESULTS", tmp_path)
    monkeypatch.setattr(benchmarks.common, "ROOT", tmp_path)
    asked = ["--show", "--folder", str(tmp_path), "--ops", OP.name, "--shapes", "2", "--write"]
    monkeypatch.setattr(sys, "argv", ["shapes", *asked])
    assert main() == 0
    page = (tmp_path / "shapes_seed1-nvidia-h100.md").read_text()
    assert page.startswith("# Kernels over 2 random shapes an operation, seed 1")
    assert "| softmax-float32: best of ours | 2.000, bar 1.5 PASS |" in page
    assert "### softmax-float32" in page
    assert "### softmax-float32" in capsys.readouterr().out
