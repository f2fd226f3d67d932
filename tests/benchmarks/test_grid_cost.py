"""The bars and parts behind benchmarks/grid_cost.py, on rows of known seconds. No GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="benchmarks/grid_cost.py needs its peers to be importable")

from benchmarks.common import Run, phase_table
from benchmarks.runner.grid_cost import BARE, IMPLS, Grid, bars, case_table, grid, part_table, peer_table, report, words
from runner import config
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Comparison, Row
from runner.store.journal import Journal

PEERS_S = {"do_bench": [0.1, 0.2, 0.3], "do_bench_cudagraph": [0.1], "Timer, blocked_autorange": [0.3]}


def row(impl, seed, wall_s, status="ok"):
    case = CaseRecord(Choice("gelu", {"rows": 4096}), Choice(impl, {}), (Choice("benchmark", {}),), "auto", seed)
    timed = {"gpu_us": 30.0} if status == "ok" else {}
    reason = "" if status == "ok" else "there is no GPU"
    return Row(case=case, status=status, reason=reason, metrics={**timed, "wall_s": wall_s, "first_call_s": 0.5})


def made(seeds=100, case_s=0.25, first_s=4.0, wall_s=72.0):
    rows = [row(impl, seed, case_s if seed else first_s) for seed in range(seeds) for impl in IMPLS]
    return Grid(wall_s, 5.0, tuple(rows), seeds)


def cells(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_command_is_of_200_cases_of_one_size_and_100_points():
    plan = config.plan(words(100))
    assert len(plan.cases) == 200
    assert len({case.problem for case in plan.cases}) == 100
    assert {(case.workload.fields["rows"], case.workload.fields["cols"]) for case in plan.cases} == {(4096, 4096)}
    (measure,) = config.plan([*words(2), *BARE]).cases[0].measures
    assert (measure.fields["paired_rounds"], measure.fields["samples"], measure.fields["cupti_check"]) == (0, 20, False)


def test_the_first_case_of_each_implementation_stands_apart():
    whole = made()
    assert len(whole.later_s) == 198
    assert max(whole.later_s) == 0.25
    line = cells(case_table(whole), "triton")
    assert line == ["triton", "0.250", "0.250", "0.250", "0.250", "4.00", "0.500"]
    assert cells(case_table(whole), "all")[5] == ""


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


def test_phases_are_means_and_what_is_left_is_told():
    rows = [replace(one, metrics={**one.metrics, "check_s": 0.25, "measure_s": 3.0}) for one in made(2).rows]
    assert cells(phase_table({"of all": rows}), "of all")[1:] == [
        *("4", "2.12"),
        *("0.00", "0.500", "0.250", "3.00", "-1.62"),
    ]


def test_the_parts_make_up_the_whole_and_comparisons_are_the_difference():
    whole, bare = made(), made(case_s=0.05, first_s=2.0, wall_s=5.0 + 198 * 0.05 + 4.0 + 1.5)
    text = part_table(whole, bare)
    names = [line.split("|")[1].strip() for line in text.splitlines()[2:]]
    seconds = [float(cells(text, name)[1]) for name in names]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], rel=0.01)
    comparisons = 72.0 - 5.0 - 198 * 0.25 - 8.0 - 1.5
    assert float(cells(text, "comparisons, by difference")[1]) == pytest.approx(comparisons, rel=0.01)
    assert cells(text, "comparisons, by difference")[3] == "0.0800 a comparison"


def test_peers_stand_beside_the_whole_of_ours():
    text = peer_table(made(), PEERS_S)
    assert cells(text, "ours, in all") == ["ours, in all", "0.360", "1.00"]
    assert cells(text, "do_bench") == ["do_bench", "0.200", "0.556"]


def test_the_report_has_every_table():
    text = report(made(), made(case_s=0.05, wall_s=25.0), PEERS_S)
    assert text.count("\n## ") == 4
    assert "200 cases of GELU, 4096 x 4096 float32: torch and triton, 100 seeds, 100 comparisons." in text


def ran(folder, rows, compared):
    folder.mkdir()
    batches = {one.case.key: [30.0] * 10 for one in rows}
    with Journal(folder) as journal:
        for _ in range(compared):
            journal.rounds(Comparison(batches, dict.fromkeys(batches, "graph_timestamps")))
        journal.rounds(Comparison(reason="not compared side by side: not asked for, or too slow"))
    return Run(10.0, 5.0, folder, tuple(rows))


def test_a_run_is_taken_only_if_all_was_timed_and_compared(tmp_path):
    rows = [row(impl, 0, 0.3) for impl in IMPLS]
    assert grid(ran(tmp_path / "one", rows, 1), 1).compared == 1
    with pytest.raises(RuntimeError, match="1 of 2 pairs compared"):
        grid(ran(tmp_path / "two", rows, 1), 2)


def test_a_case_without_a_time_is_told_of(tmp_path):
    rows = [row("torch", 0, 0.3), row("triton", 0, 0.3, status="unsupported")]
    with pytest.raises(RuntimeError, match="1 cases not timed; there is no GPU"):
        grid(ran(tmp_path / "none", rows, 0), 0)
