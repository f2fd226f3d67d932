"""Random shapes: how they are drawn, and what the tables say, on rows made up here."""

from __future__ import annotations

import math
import sys
from functools import cache

import pytest

import benchmarks.common
from benchmarks.kernels.shapes.__main__ import cases, command, main, measure, runs, sweep
from benchmarks.kernels.shapes.draw import NAMED, OPS, shapes
from benchmarks.kernels.shapes.report import (
    BEST,
    Measured,
    Peaks,
    bars_table,
    bound_by,
    measured,
    op_table,
    statistics,
)
from runner.experiment.results import Comparison, Row
from runner.store import run_folder
from runner.store.fingerprint import Fingerprints
from runner.store.journal import Journal

OP = OPS["softmax-float32"]
COLUMNS = {"correct": True, "verdict": "ok", "flops": 5e6, "bytes_min": 8e6, "n_kernels": 1, "config": "BLOCK=64"}
PEAK = {"bound": "memory", "pct_of_measured_peak": 40.0}  # in 5 us: 4000 GB/s
RANGES = {  # of each size that is drawn
    "gelu": [(1, 2**28), (1, 2**17)],
    "softmax": [(1, 2**22), (64, 1_500_000)],
    "matmul": [(1, 8192), (256, 16384), (256, 16384)],
    "cdist": [(64, 16384), (64, 16384), (2, 1500)],
    "mlp": [(16, 4096), (64, 4096), (4, 4)],
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_shapes_are_drawn_by_the_seed_within_their_ranges(op):
    drawn = [shape for seed in range(20) for shape in shapes(op, seed, 24)[24 // NAMED :]]
    ranges = RANGES[op.workload] if op.name != "matmul-float32" else [(64, 4096)] * 3
    for shape in drawn:
        assert all(least <= size <= most for size, (least, most) in zip(shape, ranges, strict=True)), shape
        assert op.least <= math.prod(shape) <= op.most
    sizes = [size for shape in drawn for size, (least, most) in zip(shape, ranges, strict=True) if least < most]
    assert 0.3 < sum(size % 16 > 0 for size in sizes if size > 16) / sum(size > 16 for size in sizes) < 0.5
    assert sum(size % 64 == 0 for size in sizes if size >= 256) / sum(size >= 256 for size in sizes) > 0.5
    one = shapes(op, 1, 24)
    assert len(set(one)) == 24
    assert one == shapes(op, 1, 24) != shapes(op, 2, 24)
    assert {*shapes(op, 1, 8)} < {*one}
    assert max(max(shape) for shape in shapes(op, 1, 24, small=True)) <= 251


def test_a_quarter_of_the_shapes_are_named_ones_of_several_sets():
    assert {(4096, 4096, 4096), (1, 4096, 14336)} & {*shapes(OPS["matmul-float32"], 1, 24)[:6]}
    assert all(128256 in shape or shape[1] <= 16384 for shape in shapes(OPS["softmax-bfloat16"], 1, 24)[:6])


def test_the_command_has_a_case_for_each_shape_and_implementation():
    op = OPS["matmul-bfloat16"]
    drawn = shapes(op, 1, 24)
    problems, labels = cases(command(op, "cuda", max_autotune=True), drawn)
    assert [*problems] == drawn
    tuned = {"compiled(mode=default)", "compiled(mode=max-autotune-no-cudagraphs)"}
    for shape, some in problems.items():
        assert [labels.label(one.impl) for one in some[:3]] == ["triton", "cuda", "torch"]
        assert {labels.label(one.impl) for one in some[3:]} == tuned
        fields = some[0].workload.fields
        assert (fields["m"], fields["k"], fields["n"], fields["dtype"]) == (*shape, "bfloat16")
    timing = some[0].measures[0].fields
    assert timing["captures"] >= 20
    assert timing["cupti_check"]
    assert timing["cold_l2"]


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
                journal.rounds(Comparison(batches, dict.fromkeys(batches, "graph_timestamps")))
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


def test_an_mlp_as_a_graph_is_compared_with_torch_as_a_caller_has_both():
    op = OPS["mlp-float32"]
    problems, labels = cases(command(op, "cuda"), shapes(op, 1, 2))
    found = []
    for (shape, some), times in zip(problems.items(), ((300.0, 60.0), (400.0, 100.0)), strict=True):
        us = dict(zip(("torch", "cudagraph"), times, strict=True))
        named = {labels.label(case.impl): case for case in some}
        rows = {name: Row(case=named[name], status="ok", metrics={"pipelined_us": us[name]}) for name in us}
        key = named["torch"].key
        rounds = {key: Comparison({key: [1.0] * 10}, {key: "graph_timestamps"})}
        found.append(Measured(shape, [*rows.values()], True, rows, rounds=rounds))
    text, _ = bars_table({op: found})
    assert "cudagraph, calls back to back | 4.472, bar 3 PASS | 4.050 | 4.000" in text
    assert found[0].seen(op) == {}  # the graph is no peer of the kernels


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


def test_a_shape_at_which_no_peer_is_right_does_not_count(tmp_path):
    drawn = shapes(OP, 1, 3)
    failed = [(drawn[0], "torch"), (drawn[0], "compiled")]
    found = folder_of(tmp_path, [{"triton": 1.0, "torch": 9.0, "compiled": 9.0}] * 3, failed=failed)
    for who in ("triton", BEST):
        assert statistics(OP, found, who).ratios == pytest.approx({drawn[1]: 9.0, drawn[2]: 9.0})
    assert f"- {drawn[0][0]}x{drawn[0][1]} torch: error: it broke" in op_table(OP, found)


def test_one_shape_or_none_that_counts_still_has_a_page(tmp_path):
    drawn = shapes(OP, 1, 2)
    failed = [(drawn[0], "torch"), (drawn[0], "compiled")]
    found = folder_of(tmp_path, [{"triton": 1.0, "torch": 9.0, "compiled": 9.0}] * 2, failed=failed)
    text, _ = bars_table({OP: found})
    assert "9.000, bar 1.1 PASS | 9.000 | 9.000, bar 0.9 PASS" in text
    text, missed = bars_table({OP: found[:1]})
    assert "0.000, bar 1.1 MISS" in text
    assert missed == 4


@pytest.mark.parametrize("why", ["done", "unpaired", "changed", "missing"])
def test_a_second_command_measures_whole_shapes_that_are_not_finished(tmp_path, monkeypatch, why):
    drawn, times, asked = shapes(OP, 1, 3), [{"triton": 1.0, "torch": 2.0}] * 2, []
    folder_of(
        tmp_path,
        times,
        unpaired=drawn[1:2] if why == "unpaired" else (),
        fingerprint="before" if why == "changed" else "now",
    )
    problems, labels = planned()
    left = {"done": [], "unpaired": drawn[1:2], "changed": drawn[:2], "missing": drawn[2:]}[why]
    some = {shape: problems[shape] for shape in drawn[: 3 if why == "missing" else 2]}
    monkeypatch.setitem(measure.__globals__, "run", lambda words, folder, codes: asked.append((words[-1], folder)))
    monkeypatch.setattr(Fingerprints, "of", lambda self, case: {"a kernel": "now"})
    measure([], measured(some, labels, runs(tmp_path)), tmp_path)
    assert asked == ([(sweep(left), tmp_path / "2")] if left else [])


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


def test_a_call_is_bound_by_the_peak_it_comes_near_or_by_neither(tmp_path):
    row = folder_of(tmp_path, [{"triton": 5.0, "torch": 5.0}] * 2)[0].rows["triton"]
    peaks = Peaks.of([row])
    assert peaks.gbps == pytest.approx(4000.0)
    assert peaks.percents(row, 4.0) == (pytest.approx(50.0), None)
    assert bound_by(4.0, 1, 50.0, None) == "bytes"
    assert bound_by(4.0, 1, 50.0, 60.0) == "flops"
    assert bound_by(4.0, 1, 30.0, 20.0) == "short"
    assert bound_by(40.0, 9, 30.0, 20.0) == "short"
    assert bound_by(40.0, 1, 30.0, 20.0) == "few tiles"
    assert bound_by(40.0, 1, None, None) == ""
