"""Bars over races: what is promised, what was seen, and what is missed; on results made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.kernels.__main__ import CONF
from benchmarks.kernels.races import COPY, EXPERIMENTS, OPS, Arm, Bar, Race, Result
from benchmarks.kernels.rows import results
from benchmarks.kernels.tables import brief, report
from runner import config, implementations
from runner.experiment import schema
from runner.experiment.case import CaseRecord, Choice
from runner.experiment.results import Comparison, Row
from runner.store.journal import Journal


def result(times_us, bars=(), group="", failed=()):
    race = Race("gelu", {"rows": 8, "dtype": "float32"}, {name: {"name": name} for name in times_us}, bars, group)
    wobble = [1 + 0.0001 * (n % 3) for n in range(10)]
    arms = {name: Arm(us, [us * w for w in wobble], "graph_timestamps", 0.5) for name, us in times_us.items()}
    return Result(race, arms, dict(failed))


def test_a_ratio_is_the_peers_time_over_ours_with_its_interval():
    ratio, half = result({"triton": 100.0, COPY: 98.0}).ratio("triton", COPY)
    assert ratio == pytest.approx(0.98)
    assert 0 < half < 0.002


@pytest.mark.parametrize(("ours_us", "missed"), [(99.0, 0), (103.0, 1)])
def test_a_bar_is_held_against_the_fastest_peer(ours_us, missed):
    bar = Bar("triton", ("torch", "compiled"), 0.98, beyond=1.02)
    text, count = report([result({"triton": ours_us, "torch": 150.0, "compiled": 100.0, COPY: 90.0}, [bar])])
    assert count == missed
    assert text.splitlines()[4].endswith("| MISS |" if missed else "| PASS |")
    assert "x compiled" in text
    assert "1.02 MISS" in text


def test_what_did_not_run_is_a_miss_with_its_reason():
    bars = [Bar("cuda", (COPY,), 0.9), Bar("triton", ("torch",), 0.9)]
    text, count = report([result({"triton": 1.0, COPY: 1.0}, bars, failed={"cuda": "Unsupported: no compiler"})])
    assert count == 2
    assert "Unsupported: no compiler" in text
    assert "no peer ran" in text


def test_a_group_is_judged_by_its_geometric_mean_and_its_worst():
    fast, slow = ({"triton": us, "torch": 100.0, COPY: 1.0} for us in (90.0, 104.0))
    text, count = report([result(fast, group="bfloat16 large"), result(slow, group="bfloat16 large")])
    assert count == 1
    assert "1.034" in text  # the mean of 100 / 90 and 100 / 104
    assert "0.962" in text


def test_a_line_says_who_ran_and_who_did_not():
    said = brief(result({"triton": 12.5, COPY: 10.0}, failed={"cuda": "no"}))
    assert said == "gelu rows=8 dtype=float32: triton 12.5, copy 10.0 us; cuda FAILED: no"


def test_every_race_names_what_exists():
    races = [race for op in OPS.values() for race in op()]
    assert len(races) > 40
    for race in races:
        assert schema.exists("models", race.op)
        if race.op not in EXPERIMENTS:
            assert all(implementations.find(fields["name"]) for fields in race.arms.values())
        for bar in race.bars:
            assert {bar.ours, *bar.peers} <= {*race.arms, COPY}


def test_the_experiments_have_the_cases_of_their_races():
    for op, names in EXPERIMENTS.items():
        words = ["--config-dir", str(CONF), f"workload={op}", "-m"]
        cases = [case for name in names for case in config.plan([*words, f"+experiment={name}"]).cases]
        for race in OPS[op]():
            fields = {"pass": "fwd", **race.fields}
            arms = {case.impl.name for case in cases if fields.items() <= case.workload.fields.items()}
            assert {*race.arms, COPY} <= arms, race.title


def test_a_run_of_an_experiment_gives_the_results_of_its_races(tmp_path):
    race = Race("gelu", {"rows": 8, "cols": 16, "dtype": "float32"}, {"torch": {}, "cuda": {}})
    workload, names = Choice("gelu", {"pass": "fwd", **race.fields}), ("torch", "copy", "naive")
    cases = {name: CaseRecord(workload, Choice(name, {}), (), "auto", 0) for name in (*names, "cuda")}
    checked = {"correct": True, "err_over_tol": 0.5}
    with Journal(tmp_path) as journal:
        for name in names:
            metrics = {"wall_us": 2.0, **(checked if name != "copy" else {})}
            journal.row(Row(case=cases[name], status="ok", metrics=metrics))
        journal.row(Row(case=cases["cuda"], status="unsupported", reason="no GPU"))
        keys = [cases[name].key for name in names]
        journal.rounds(Comparison(dict.fromkeys(keys, [2.0] * 10), dict.fromkeys(keys, "perf_counter")))
    (found,) = results([race, replace(race, fields=race.fields | {"pass": "bwd"})], tmp_path)
    assert found.failed == {"cuda": "unsupported: no GPU"}
    assert {name: (arm.us, arm.error) for name, arm in found.arms.items()} == {"torch": (2.0, 0.5), "copy": (2.0, None)}
