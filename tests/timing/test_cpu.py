"""``measure=benchmark`` on a CPU: the time is right, and the row states where the threads were."""

from __future__ import annotations

import os
import threading
import time
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch

from runner.records.columns import COLUMNS
from runner.timing.call import Call
from runner.timing.cpu import compare, measure

SETTINGS = SimpleNamespace(samples=50, warmup_s=0.02, max_s=0.3, target_pct=2.0)


def test_a_busy_loop_of_known_length_reads_its_length():
    """A loop that watches the same clock cannot end early; on a shared machine it may end late."""

    def busy():
        end = time.perf_counter_ns() + 300_000
        while time.perf_counter_ns() < end:
            pass

    columns, *_ = measure(Call(busy), SETTINGS)
    assert 300.0 <= columns["min_us"] < 315.0
    assert columns["low_us"] <= columns["wall_us"] <= columns["high_us"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="asks Linux")
def test_the_row_states_the_cpus_that_the_threads_were_pinned_to():
    ours, whole, seen = threading.get_native_id(), os.sched_getaffinity(0), []
    x = torch.ones(512, 512)

    def call():
        seen.append(os.sched_getaffinity(ours))
        return (torch.nn.functional.gelu(x),)

    columns, *_ = measure(Call(call), SETTINGS)
    assert columns.keys() <= COLUMNS.keys()
    if torch.get_num_threads() <= len(whole):
        ends = [[int(cpu) for cpu in part.split("-")] for part in columns["cpus"].split(",")]
        named = {cpu for end in ends for cpu in range(end[0], end[-1] + 1)}
        assert len(named) == torch.get_num_threads()
        assert len(seen[-1]) == 1
        assert seen[-1] <= named <= whole
    else:
        assert columns["cpus"] == ""
        assert seen[-1] == whole
    assert os.sched_getaffinity(0) == whole


def test_all_sides_of_a_pair_have_as_many_calls_in_a_sample():
    log = []

    def lasting(name, us):
        def run():
            log.append(name)
            end = time.perf_counter_ns() + 1000 * us
            while time.perf_counter_ns() < end:
                pass

        return Call(run)

    settings = SimpleNamespace(paired_rounds=10, max_s=60.0, target_cpu_pct=1e6, race=False)
    assert compare([(lasting("a", 3), {}), (lasting("b", 1), {})], settings) is not None
    _, *runs = [len(list(run)) for _, run in groupby(log[-2000:])]
    assert {run // min(runs) for run in runs} <= {1, 2}  # two at a time where a round reverses the one before
    assert {run % min(runs) for run in runs} == {0}


def test_a_far_slower_call_keeps_its_own_number_of_calls_in_a_sample():
    log = []
    fast, slow = Call(lambda: log.append("fast")), Call(lambda: log.append("slow") or time.sleep(0.0005))
    settings = SimpleNamespace(paired_rounds=10, max_s=60.0, target_cpu_pct=1e6, race=False)
    assert compare([(fast, {}), (slow, {})], settings) is not None
    runs = [len(list(run)) for name, run in groupby(log) if name == "slow"]
    assert max(runs) <= 20
