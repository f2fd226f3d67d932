"""Bars over races: what is promised, what was seen, and what is missed; on results made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.kernels.__main__ import CONF
from benchmarks.kernels.races import COPY, EXPERIMENTS, OPS, READ, Bar, Race
from benchmarks.kernels.rows import Result, results
from benchmarks.kernels.tables import report
from runner.config import plan
from runner.records.case import CaseRecord, Choice
from runner.records.labels import Labels
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.records.settings import Settings
from runner.store.journal import Journal

RACE = Race("gelu", {"rows": 8, "dtype": "float32"})


def case(name, race=RACE, **fields):
    return CaseRecord(Choice(race.op, {"pass": "fwd", **race.fields}), Choice(name, fields), (), Settings("auto", 0))


def result(times_us, bars=(), group="", failed=()):
    cases = {name: case(name) for name in times_us}
    wobble = [1 + 0.0001 * (n % 3) for n in range(10)]
    batches = {cases[name].key: [us * w for w in wobble] for name, us in times_us.items()}
    one = PairedRounds(batches, dict.fromkeys(batches, "graph_timestamps"))
    figures = {"err_over_tol": 0.5, "instrument": "graph_timestamps"}
    rows = {
        name: Row(case=cases[name], status="ok", metrics={"gpu_us": us, **figures}) for name, us in times_us.items()
    }
    return Result(replace(RACE, bars=bars, group=group), rows, dict(failed), dict.fromkeys(batches, one))


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
    text, count = report([result(fast, group="float16 large"), result(slow, group="float16 large")])
    assert count == 1
    assert "1.034" in text  # the mean of 100 / 90 and 100 / 104
    assert "0.962" in text


@pytest.mark.long
def test_the_experiments_have_the_cases_of_their_races():
    names = dict.fromkeys(name for some in EXPERIMENTS.values() for name in some)
    plans = [plan(["--config-dir", str(CONF), f"+experiment={name}", "-m"]).cases for name in names]
    labels = [Labels(one.impl for one in cases) for cases in plans]
    cases = [(one.workload, of.label(one.impl)) for some, of in zip(plans, labels, strict=True) for one in some]
    assert EXPERIMENTS.keys() == OPS.keys()
    races = [race for op in OPS.values() for race in op()]
    assert len(races) > 40
    for race in races:
        fields = {"pass": "fwd", **race.fields}
        own = [(one, label) for one, label in cases if one.name == race.op]
        arms = {label for one, label in own if fields.items() <= {"pass": "fwd", **one.fields}.items()}
        named = {name for bar in race.bars for name in (bar.ours, *bar.peers)} - {READ}
        assert {COPY, "torch", *named} <= arms, race.title


def test_a_run_of_an_experiment_gives_the_results_of_its_races(tmp_path):
    race = replace(RACE, bars=[Bar("cuda", ("torch",), 1.0)])
    names = ("torch", "copy", "naive")
    cases = {name: case(name) for name in (*names, "cuda")}
    modes = [case("compiled", mode=mode) for mode in ("default", "max-autotune")]
    checked = {"correct": True, "err_over_tol": 0.5}
    with Journal(tmp_path) as journal:
        for name in names:
            metrics = {"wall_us": 2.0, **(checked if name != "copy" else {})}
            journal.row(Row(case=cases[name], status="ok", metrics=metrics))
        journal.row(Row(case=cases["cuda"], status="unsupported", reason="no GPU"))
        for one in modes:
            journal.row(Row(case=one, status="ok", metrics={"wall_us": 3.0, **checked}))
        keys = [cases[name].key for name in names] + [modes[0].key]
        journal.rounds(PairedRounds({key: [2.0] * 10 for key in keys}, dict.fromkeys(keys, "perf_counter")))
    bwd = replace(race, fields=race.fields | {"pass": "bwd"})
    found, empty = results([race, bwd], [tmp_path])
    assert found.failed == {"cuda": "unsupported: no GPU", "compiled(mode=max-autotune)": "not in the paired rounds"}
    assert {name: found.us(name) for name in found.rows} == {
        "torch": 2.0, "copy": 2.0, "naive": 2.0, "compiled(mode=default)": 3.0
    }  # fmt: skip
    assert found.ratio("naive", "torch")[0] == 1.0
    text, missed = report([found, empty])
    assert missed == 2
    assert "| unsupported: no GPU |" in text
    assert "| no row |" in text
