"""What ``runner tune`` concludes from a race, what it refuses, and what it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.cli import tune as command
from runner.config import plan
from runner.findings.names import Names
from runner.findings.tuning import confirm, confirming, contests, judge, racing
from runner.records.bad_input import BadInput
from runner.records.paired_rounds import PairedRounds
from runner.records.row import Row
from runner.report.tuning import describe

GRID = ("workload=add", "workload.rows=64", "workload.cols=64", "impl=triton", "device=cpu")
ARGS = ("impl.args.BLOCK=64,128,256",)


@pytest.fixture
def contest():
    (found,) = contests(plan([*GRID, *ARGS, "-m"]).cases)
    return found


def measured(cases, times, dropped=()):
    """Rows and rounds of ``cases``, each with its time of ``times`` by its BLOCK, None for one that failed."""
    rows, seen, calls = [], {}, {}
    for case in cases:
        block = case.impl.arguments.get("BLOCK")
        us = times[block]
        if us is None:
            rows.append(Row(case=case, status="build_failed", reason="out of shared memory"))
            continue
        figures = {"wall_us": us, "samples": 20, "calls_per_sample": 2, "verdict": "ok", "correct": True}
        rows.append(Row(case=case, status="ok", device="cpu", metrics=figures))
        calls[case.key] = 100
        if block not in dropped:
            seen[case.key] = [us * (1 + 0.001 * (n % 2)) for n in range(10)]
    return rows, [PairedRounds(seen, dict.fromkeys(calls, "perf_counter"))]


def raced(contest, times, dropped=()):
    return judge(contest, *measured(map(racing, contest.cases), times, dropped))


def test_a_value_that_is_the_default_stands_for_the_default():
    (found,) = contests(plan([*GRID, "impl.args.BLOCK=512,1024", "impl.args.num_warps=null,4,8", "-m"]).cases)
    names = Names(found.cases)
    assert [names.impl(case) for case in found.cases] == [
        "triton(BLOCK=1024, num_warps=4)",  # the defaults
        "triton(BLOCK=512, num_warps=4)",
        "triton(BLOCK=512, num_warps=8)",
        "triton(BLOCK=1024, num_warps=8)",
    ]
    assert found.default is found.cases[0]
    done = confirm(replace(found, fastest=found.cases[1]), 1, [], [])
    assert describe(done, names)[1].startswith("  not compared with the default triton(BLOCK=1024, num_warps=4) in")


def test_what_dropped_out_of_the_race_or_failed_is_not_left_and_the_gain_is_measured_again(contest):
    names = Names(contest.cases)
    assert [names.impl(case) for case in contest.cases] == [
        "triton", "triton(BLOCK=64)", "triton(BLOCK=128)", "triton(BLOCK=256)",
    ]  # fmt: skip
    after = raced(contest, {None: 20.0, 64: 10.02, 128: 10.0, 256: None}, dropped=[None])
    again = [confirming(case, 1, 1) for case in (after.default, after.fastest)]
    done = confirm(after, 1, *measured(again, {None: 20.0, 128: 10.0}))
    assert describe(done, names) == [
        "tune: add: triton(BLOCK=128), among the fastest of 4",
        "  2.000x (1.992 to 2.009) the speed of triton, measured again",
        "  cannot be told from it: triton(BLOCK=64)",
        "  left out: triton(BLOCK=256): build_failed: out of shared memory",
    ]


def test_a_default_without_a_time_is_not_measured_again(contest):
    after = raced(contest, {None: None, 64: 20.0, 128: 10.0, 256: 20.0}, dropped=[64, 256])
    assert not after.may_gain
    assert describe(confirm(after, 1, [], []), Names(contest.cases))[:2] == [
        "tune: add: triton(BLOCK=128), the fastest of 4", "  triton has no time to compare with",
    ]  # fmt: skip


def test_where_nothing_is_faster_there_is_nothing_to_pin_and_without_times_there_is_no_winner(contest):
    names = Names(contest.cases)
    best = raced(contest, {None: 10.0, 64: 20.0, 128: 20.0, 256: 20.0}, dropped=[64, 128, 256])
    said = describe(confirm(best, 1, [], []), names)
    assert said[:2] == ["tune: add: triton, the fastest of 4", "  that is its default: there is nothing to pin"]
    none = raced(contest, dict.fromkeys((None, 64, 128, 256)))
    assert describe(none, names) == ["tune: add: no candidate has a time: build_failed: out of shared memory"]


def test_without_paired_rounds_the_shortest_time_wins_and_none_is_shown_to_be_slower(contest):
    rows, _ = measured(map(racing, contest.cases), {None: 10.0, 64: 9.0, 128: 20.0, 256: 20.0})
    after = judge(contest, rows, [PairedRounds(reason="no paired rounds: memory is short")])
    assert Names(contest.cases).impl(after.fastest) == "triton(BLOCK=64)"
    assert len(after.left) == 4


def test_processes_that_confirm_share_the_rounds_of_one_comparison(contest):
    fields = confirming(contest.default, 2, 4).measures[0].fields
    assert (fields["samples"], fields["paired_rounds"], fields["target_pct"], fields["race"]) == (20, 10, 1.0, False)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([*GRID], "nothing to tune: give arguments with their values, as in impl.args.BLOCK=512,1024,2048"),
        (
            [*GRID, *ARGS, "impl=triton,cuda"],
            "impl: tune compares the arguments of one implement",
        ),
        ([*GRID, *ARGS, "replicas=2"], "replicas: tune starts processes of its own; leave replicas out"),
        ([*GRID, *ARGS, "measure=[benchmark,memory]"], "measure: tune compares times; give measure=benchmark alone"),
        ([*GRID, *ARGS, "debug=interpret"], "debug=interpret: its timings are not valid; leave debug out"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_one_line(words, answer):
    with pytest.raises(BadInput) as caught:
        command.main([*words, "launcher=ray"])  # without a process that imports torch beforehand
    assert str(caught.value).startswith(answer)
