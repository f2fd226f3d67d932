"""The host's clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.timing.cpu import SHORTEST_SAMPLE_NS, PerfCounter

ROOT = Path(__file__).resolve().parents[2]


class FakeClock:
    """A clock that moves only while a call runs."""

    def __init__(self, call_ns: int) -> None:
        self.now, self.call_ns, self.calls = 0, call_ns, 0

    def call(self) -> None:
        self.now += self.call_ns
        self.calls += 1

    def __call__(self) -> int:
        return self.now


@pytest.mark.parametrize("call_ns", [1, 50, 999, 19_999, 20_000, 5_000_000])
def test_a_call_of_known_length_reads_its_length(call_ns):
    clock = FakeClock(call_ns)
    instrument = PerfCounter(clock.call, clock=clock)
    assert instrument.samples(7) == [call_ns / 1e3] * 7
    inner = instrument.calls_per_sample
    assert inner * call_ns >= SHORTEST_SAMPLE_NS
    assert inner == 1 or (inner - 1) * call_ns <= 3 * SHORTEST_SAMPLE_NS


def test_an_interruption_does_not_make_a_short_call_a_long_one():
    clock = FakeClock(1000)

    def call():
        clock.call()
        clock.now += 4_000_000 * (clock.calls == 1)  # the system gives the core to another process

    assert PerfCounter(call, clock=clock).calls_per_sample >= SHORTEST_SAMPLE_NS / 1000


def test_a_busy_loop_of_known_length_reads_its_length():
    """A loop that watches the same clock cannot end early; on a shared machine it may end late."""

    def busy():
        end = time.perf_counter_ns() + 300_000
        while time.perf_counter_ns() < end:
            pass

    assert 300.0 <= min(PerfCounter(busy).samples(50)) < 315.0


def test_what_reading_the_clock_takes_is_in_no_sample():
    clock = FakeClock(900)

    def reading() -> int:
        clock.now += 60
        return clock.now

    for reset in (None, lambda: None):
        assert PerfCounter(clock.call, reset, reading).samples(3) == [0.9] * 3


def test_a_reset_is_not_timed_and_comes_before_every_call():
    clock, log = FakeClock(70), []

    def reset():
        clock.now += 1000
        log.append("reset")

    def call():
        clock.call()
        log.append("call")

    instrument = PerfCounter(call, reset, clock)
    assert instrument.samples(3) == [0.07] * 3
    assert log == ["reset", "call"] * 3


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="asks Linux")
def test_a_busy_neighbour_is_seen_in_the_time_that_threads_wait(tmp_path):
    from runner.timing.cpu import waited_s

    core = {min(os.sched_getaffinity(0))}
    source = f"""
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from runner.timing.cpu import waited_s
def spin(seconds):
    end = time.time() + seconds
    while time.time() < end: pass
os.sched_setaffinity(0, {core})
if (neighbour := os.fork()) == 0:
    spin(60)
    os._exit(0)
spin(0.5)
print(waited_s())
os.kill(neighbour, signal.SIGKILL)
"""
    program = tmp_path / "program.py"  # a file, so that its process is forked
    program.write_text(source)
    shared = float(subprocess.check_output([sys.executable, program, str(ROOT)], text=True))
    assert shared > 0.1
    assert waited_s() >= 0
