"""Tuning by successive halving: which candidates a stage leaves out, and what is written."""

from __future__ import annotations

import math
import random

import pytest
import yaml

from runner import config
from runner.cli import tune as command
from runner.experiment.results import Comparison, Row
from runner.experiment.schema import BadInput
from runner.report import tune
from runner.report.derive import Names
from runner.timing.statistics import LEVEL, NO_FLOOR, Ratio, paired

GRID = ("workload=add", "workload.rows=64", "workload.cols=64", "impl=triton", "device=cpu")
ARGS = ("impl.args.BLOCK=64,128,256",)


def batches(chance, us, noise):
    return [us * math.exp(chance.gauss(0, noise)) for _ in range(10)]


def test_the_true_fastest_is_rarely_left_out_and_slow_ones_nearly_always_are():
    """Eight candidates in three stages, 200 times: four are equal, the others 1, 3, 10 and 30 % slower."""
    chance, times = random.Random(0), [100.0, 100.0, 100.0, 100.0, 101.0, 103.0, 110.0, 130.0]
    lost = slow = 0
    for _ in range(200):
        left = set(range(8))
        for share in tune.STAGES:
            seen = {i: batches(chance, times[i], 0.005 / math.sqrt(share)) for i in left}
            first = min(left)
            fastest = min(left, key=lambda i: paired(seen[i], seen[first], (NO_FLOOR, NO_FLOOR)).log)
            over = {i: paired(seen[i], seen[fastest], (NO_FLOOR, NO_FLOOR)) for i in left}
            left -= tune.beaten(over, LEVEL / len(tune.STAGES))
        lost += 0 not in left
        slow += bool(left & {6, 7})
    assert lost <= LEVEL * 200
    assert slow == 0


def test_what_has_no_interval_is_never_left_out():
    over = {"a": Ratio(0.0, 0.0, 9, paired=True), "b": Ratio(2.0, math.inf, 1, paired=False)}
    assert not tune.beaten(over, 0.05)
    assert tune.beaten({**over, "c": Ratio(0.5, 0.01, 9, paired=True)}, 0.05) == {"c"}


@pytest.fixture
def contest():
    (found,) = tune.contests(config.plan([*GRID, *ARGS, "-m"]).cases)
    return found


def measured(contest, share, times, process=0, calls=100):
    """Rows and rounds of a stage in which each case took its time of ``times``, None for one that failed."""
    chance, rows, seen = random.Random(1), [], {}
    for case in contest.cases:
        us = times[case.impl.arguments.get("BLOCK")]
        case = tune.staged(case, share, process)
        if us is None:
            rows.append(Row(case=case, status="build_failed", reason="out of shared memory"))
            continue
        figures = {"wall_us": us, "samples": calls, "calls_per_sample": 2, "verdict": "ok", "correct": True}
        rows.append(Row(case=case, status="ok", device="cpu", metrics=figures))
        seen[case.key] = batches(chance, us, 0.002)
    return rows, [Comparison(seen, dict.fromkeys(seen, "perf_counter"))]


def test_the_default_is_a_candidate_and_stays_to_compare_with(contest):
    names = Names(contest.cases)
    assert [names.impl(case) for case in contest.left] == [
        "triton", "triton(BLOCK=64)", "triton(BLOCK=128)", "triton(BLOCK=256)",
    ]  # fmt: skip
    after = tune.judge(contest, 0.1, *measured(contest, 0.1, {None: 20.0, 64: 10.0, 128: 10.0, 256: None}))
    assert [names.impl(case) for case in after.left] == ["triton(BLOCK=64)", "triton(BLOCK=128)"]
    assert [names.impl(case) for case in after.cases] == ["triton", "triton(BLOCK=64)", "triton(BLOCK=128)"]
    last = tune.judge(after, 1.0, *measured(after, 1.0, {None: 20.0, 64: 10.0, 128: 11.0}))
    assert last.decided
    done = tune.confirm(last, 1, *measured(last, 1.0, {None: 20.0, 64: 10.0}, process=1))
    head, gain, *rest = tune.lines(done, names)
    assert head == "tune: add: triton(BLOCK=64), the fastest of 4"
    assert gain == "  1.999x (1.989 to 2.009) the speed of triton, measured again"
    assert rest == [
        "  left out: 1: build_failed: out of shared memory",
        "  sampled 1,200 calls to choose, and 400 to confirm it; all 4 in full: about 800",
    ]


def test_where_nothing_is_faster_there_is_nothing_to_pin_and_without_times_there_is_no_winner(contest):
    names = Names(contest.cases)
    same = tune.judge(contest, 1.0, *measured(contest, 1.0, {None: 10.0, 64: 10.0, 128: 10.0, 256: 30.0}))
    assert {names.impl(case) for case in same.left} == {"triton", "triton(BLOCK=64)", "triton(BLOCK=128)"}
    assert any(line.startswith("  cannot be told from it: triton") for line in tune.lines(same, names))
    best = tune.judge(contest, 0.1, *measured(contest, 0.1, {None: 10.0, 64: 20.0, 128: 20.0, 256: 20.0}))
    assert "  that is its default: there is nothing to pin" in tune.lines(tune.confirm(best, 1, [], []), names)
    none = tune.judge(contest, 0.1, *measured(contest, 0.1, dict.fromkeys((None, 64, 128, 256))))
    assert tune.lines(none, names) == ["tune: add: no candidate has a time: build_failed: out of shared memory"]


def test_each_stage_is_shorter_than_the_whole_with_a_wider_interval(contest):
    first, whole = (tune.staged(contest.default, share).measures[0].fields for share in (0.1, 1.0))
    assert (whole["samples"], whole["paired_rounds"], whole["target_pct"]) == (800, 40, 0.5)
    assert (first["samples"], first["paired_rounds"]) == (80, 10)
    assert first["target_pct"] == pytest.approx(1.58, rel=0.01)
    assert tune.staged(contest.default, 1.0).key == contest.default.key


def test_the_experiment_that_it_writes_runs_the_winner(contest, tmp_path):
    winner = contest.left[2]
    (tmp_path / "experiment").mkdir()
    text = tune.experiment(winner, "tuned_add", "about it", str(tmp_path))
    (tmp_path / "experiment" / "tuned_add.yaml").write_text(text)
    assert yaml.safe_load(text)["impl"] == {"args": {"BLOCK": 128}}
    (case,) = config.plan(["--config-dir", str(tmp_path), "+experiment=tuned_add", "device=cpu"]).cases
    assert case.key == winner.key


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--processes", "0"], "--processes 0: give a whole number, at least 1"),
        ([*GRID], "nothing to tune: give arguments with their values, as in impl.args.BLOCK=512,1024,2048"),
        ([*GRID, *ARGS, "replicas=2"], "replicas: tune starts processes of its own; leave replicas out"),
        ([*GRID, *ARGS, "measure=[benchmark,memory]"], "measure: tune compares times; give measure=benchmark alone"),
        ([*GRID, *ARGS, "debug=interpret"], "debug=interpret: its timings are not valid; leave debug out"),
        ([*GRID, *ARGS, "measure.benchmark.paired_rounds=5"], "measure.benchmark.paired_rounds=5: tune compares in pa"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(words, answer):
    with pytest.raises(BadInput) as caught:
        command.main([*words, "launcher=ray"])  # without a process that imports torch beforehand
    assert str(caught.value).startswith(answer)
