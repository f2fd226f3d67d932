"""Ranks stay together while they time: here threads, each with ``ranks.current`` of its own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from runner.device import processes
from runner.device.exchange import MeetingPlace
from runner.measure import MeasureContext, result
from runner.records.case import CaseRecord, Choice
from runner.records.options import option_defaults
from runner.records.settings import Settings
from runner.subject.path import Inputs, checked
from runner.timing import instruments, ranks
from runner.timing.call import Call
from runner.timing.correctness import CheckResult
from runner.timing.cpu import PerfCounter, pinned
from runner.timing.instrument import Instrument
from runner.timing.ranks import Ranks, gravest
from runner.timing.spot_checks import SpotChecks
from runner.worker import AGAIN

# What a collective is here: out of order, it raises RanksDiffer where others would hang.
ALL = "collective"


@pytest.fixture
def both(monkeypatch):
    """Run a function of the rank on two ranks; their results."""
    own, place = threading.local(), MeetingPlace(2)

    class Current:
        def __getattr__(self, name):
            return getattr(own.ranks, name)

    def go(function):
        def run(rank):
            own.ranks = Ranks(rank, 2, place.path)
            return function(rank)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(run, range(2)))

    monkeypatch.setattr(ranks, "current", Current())
    return go


def test_the_output_that_is_kept_may_be_of_another_call_on_each_rank(both):
    def judged(rank):
        counter = PerfCounter(lambda: ranks.current.gather(rank, ALL), lambda: None)
        counter.checks, counter.calls_per_sample = SpotChecks(lambda outputs: ""), 16
        for _ in range(5):
            counter.checks.judge(counter._further_outputs)
        return counter.checks.count

    assert both(judged) == [5, 5]


def test_all_ranks_judge_an_output_that_is_new_on_one(both):
    def judge(_):
        return "" if ranks.current.gather("reference", ALL) else "never"

    def checked(rank):
        checks = SpotChecks(judge)
        for turn in range(3):
            checks.judge(lambda turn=turn: [torch.full((4,), float(turn * rank))])
        return checks.count, checks.wrong

    assert both(checked) == [(3, "")] * 2


def test_the_gravest_verdict_of_any_rank_counts_with_its_columns(both):
    drifts = {"verdict": "not_converged", "verdict_reason": "it drifts", "cpu_wait_pct": 0.0}
    waited = {"verdict": "contended", "verdict_reason": "it waited", "cpu_wait_pct": 9.5}
    assert (
        both(lambda rank: [gravest([drifts, waited][rank]), gravest(drifts)])
        == [[waited | {"verdict_reason": "rank 1: it waited"}, drifts]] * 2
    )


def test_a_rank_that_cannot_judge_leaves_the_result_unknown(both):
    def judged(rank):
        x = torch.ones(4)
        expected = SimpleNamespace(check=lambda outputs, changed: CheckResult(unknown="too short" if rank else ""))
        _, columns, wrong = checked(Call(lambda: (x + 1,)), expected, lambda: expected, Inputs([x]))
        return columns["correct"], columns["check_note"], wrong

    assert both(judged) == [(None, "rank 1: too short", "")] * 2


def test_the_errors_are_those_of_the_worst_rank(both):
    def judged(rank):
        x, error = torch.ones(4), [(1e-6, 1.0), (2e-6, math.inf)][rank]
        result = CheckResult(*error, note=["", "a constant would pass"][rank])
        expected = SimpleNamespace(check=lambda outputs, changed: result)
        return checked(Call(lambda: (x + 1,)), expected, lambda: expected, Inputs([x]))[1]

    for columns in both(judged):
        assert columns["max_abs_err"] == 2e-6
        assert "max_rel_err" not in columns
        assert columns["check_note"] == "rank 1: a constant would pass"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins threads")
def test_ranks_are_pinned_to_separate_cores_or_not_at_all(both, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    cpus = sorted(os.sched_getaffinity(0))[:2]

    def pinned_to(allowed):
        os.sched_setaffinity(0, allowed)  # of this thread
        with pinned() as used:
            return used

    assert both(lambda rank: pinned_to(cpus[:1])) == ["", ""]
    for cpu, used in zip(cpus, both(lambda rank: pinned_to(cpus)), strict=False):
        assert used in ("", str(cpu))  # "" if torch has just started a thread


def test_what_one_rank_cannot_do_is_told_on_all(both):
    @ranks.all_or_none(ValueError)
    def check(rank):
        if rank == 1:
            raise ValueError("too short")

    def told(rank):
        with pytest.raises(ValueError, match=r"^rank 1: too short$"):
            check(rank)
        check(0)

    both(told)


def test_ranks_that_a_tool_starts_again_meet_again(both, tmp_path):
    fields = option_defaults("workload/all_reduce") | {"bytes": 1024}
    fields = {name: value for name, value in fields.items() if name not in ("name", "axes", "shape")}
    case = CaseRecord(Choice("all_reduce", fields), Choice("torch", {}), (), Settings("cpu", 0))

    def again(rank):
        context = MeasureContext("cpu", case, tmp_path / str(rank), program=AGAIN)
        ended = subprocess.run(context.command(3), env=processes.environment(), capture_output=True, text=True)
        return len(result(context.folder).get("calls_us", ended.stderr))

    assert both(again) == [3, 3]


@pytest.mark.parametrize(("leaving", "calls"), [((0,), 10), ((0, 1), 10), ((), 2)])
def test_work_that_one_rank_leaves_is_noticed_by_all_after_equally_many_calls(both, monkeypatch, leaving, calls):
    here = threading.local()  # the clock of a rank, which ticks at each look, and the end of its work

    def look():
        here.now += 1e-6
        return here.now

    def pass_by(seconds):
        here.now += seconds

    def wait():
        here.now = max(here.now, here.end)

    def found(rank):
        here.now = here.end = 0.0
        made = []

        def run():
            made.append(ranks.current.gather(rank, ALL))
            here.end = here.now + (5e-4 if rank in leaving else 0.0)

        return instruments.leaves_work(Call(run)), len(made)

    monkeypatch.setattr(instruments, "time", SimpleNamespace(perf_counter=look, sleep=pass_by))
    monkeypatch.setattr(instruments, "synchronize", wait)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))
    assert both(found) == [(bool(leaving), calls)] * 2


def test_the_spread_is_of_the_same_units_as_the_times(both):
    def timed(rank):
        instrument = Instrument(lambda: None, lambda: None)
        return instrument.slowest([1.0 + rank, 5.0 - rank]), instrument.spreads_us

    assert both(timed) == [([2.0, 5.0], [1.0, 1.0])] * 2
