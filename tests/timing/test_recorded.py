"""Summaries and the procedure on series that were recorded on H200 GPUs; series.md says what each of them is.

The truth is what the whole of a recording, or other processes, give. Rates are of the windows or processes counted in
each test, and ``error`` is one binomial error at 95 %.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runner.timing import procedure, ranks
from runner.timing.instrument import Instrument
from runner.timing.statistics import FLOORS, Floor, Summary, summarise, trimmed_mean, von_neumann

RECORDED = np.load(Path(__file__).with_name("series.npz"))
STAMPS = FLOORS["graph_timestamps"]
EVENTS = Floor(
    us=0.10, share=0.0015
)  # of events in graphs, less what they read of nothing: no instrument is of that kind

START_UP = 500  # samples, 40 ms of the shortest call: what no series of the recording is steady in
TARGET = 0.005  # the half-width and the drift that measure.benchmark.target_pct allows, as a share

POWER = ["power/gelu:2^28", "power/mm:4096", "power/mm:8192", "series/mm:4096", "series/mm:8192"]
QUIET = sorted(key for key in RECORDED.files if key.startswith(("series/", "ramp/")) and key not in POWER)
# Their level follows a clock that moves by 0.2 % for 100 ms at a time, which is longer than a window.
SLOW = ["ramp/spin:36000", "series/softmax:8192x4096", "series/spin:36000"]
STEADY = [key for key in QUIET if key not in SLOW]
# The start-up effects of 2 to 17 % that the first 20 samples show against the rest.
COLD = [
    *("series/gelu:2^10", "series/gelu:2^18", "series/gelu:2^20", "series/softmax:4096x1024", "series/mm:1024"),
    *("series/mm:2048", "series/copy:2^26", "series/sum:2^24", "series/chain:9", "ramp/gelu:2^10", "ramp/mm:1024"),
]
ONE_SAMPLE_GRAPHS = [key for key in RECORDED.files if key.startswith("one/") and key != "one/mm:8192"]  # of 24 samples
VISITED = ["gelu:2^23", "mm:1024", "null:", "spin:36000"]


@cache
def recorded(key: str) -> np.ndarray:
    return RECORDED[key].astype(float)


def series(key: str) -> list[float]:
    """All samples, in the order they were taken."""
    return recorded(key).ravel().tolist()


def by_round(samples: np.ndarray) -> list[float]:
    """Captures × rounds in the order they were taken, but for the shuffle within a round."""
    return samples.T.ravel().tolist()


def windows(key: str, length: int, step: int | None = None) -> list[list[float]]:
    """What follows the start-up, cut into windows."""
    late = series(key)[START_UP:]
    return [late[i : i + length] for i in range(0, len(late) - length + 1, step or length)]


def holds(summary: Summary, truth: float, floor: Floor | None = None) -> bool:
    half = summary.high - summary.estimate
    return abs(summary.estimate - truth) <= (floor.widen(half, summary.estimate) if floor else half)


def held(keys: list[str], length: int, floor: Floor | None = None) -> tuple[float, int]:
    """Share in percent of the windows whose interval holds the value of their series, and how many there are."""
    flags = [
        holds(summarise(window), truth, floor)
        for key in keys
        for truth in [trimmed_mean(series(key)[START_UP:])]
        for window in windows(key, length)
    ]
    return percent(flags), len(flags)


def percent(flags: list[bool]) -> float:
    return 100 * sum(flags) / len(flags)


def naive_half(samples: list[float]) -> float:
    """The interval mean ± 1.96 standard errors, as if the samples were independent."""
    return 1.96 * float(np.std(samples, ddof=1)) / math.sqrt(len(samples))


def warns(summary: Summary) -> bool:
    """Not converged, as the procedure has it."""
    return abs(summary.drift) > TARGET or summary.half_width > TARGET


@pytest.mark.parametrize("length", [200, 400, 800])
def test_windows_of_steady_series_hold_the_value_of_the_whole(length):
    """327 of 332, 154 of 165, 79 of 82."""
    rate, count = held(STEADY, length)
    error = 100 * math.sqrt(0.95 * 0.05 / count)
    assert count >= 80
    assert rate >= 95 - 2 * error


def test_800_samples_reach_half_a_percent_from_5_us_up_and_nearly_so_below():
    for key in QUIET:
        most = TARGET if np.median(recorded(key)) > 5 else 1.2 * TARGET
        assert all(summarise(window).half_width <= most for window in windows(key, 800)), key


@pytest.mark.parametrize(("length", "most"), [(200, 87.0), (400, 50.0), (800, 45.0)])
def test_a_clock_that_moves_slower_than_a_window_is_not_in_the_interval_of_sampling(length, most):
    """64 of 76 hold it, 18 of 38, 8 of 19: the exception to the test above, and the reason for the floor below."""
    rate, count = held(SLOW, length)
    assert count >= 19
    assert rate <= most


@pytest.mark.parametrize("length", [200, 400, 800])
def test_the_floor_of_an_instrument_makes_up_for_slow_clocks(length):
    """406 of 408, 201 of 203, 101 of 101 windows of every quiet series."""
    assert held(QUIET, length, STAMPS)[0] >= 99.0
    assert held(SLOW, length, STAMPS)[0] >= 97.0


@pytest.mark.parametrize(
    ("key", "most"),
    [("power/mm:4096", 15.0), ("power/mm:8192", 25.0), ("power/gelu:2^28", 10.0), ("series/mm:4096", 15.0)],
)
def test_a_window_of_a_kernel_at_the_power_limit_does_not_hold_the_value_of_a_second(key, most):
    """3 of 21, 2 of 9, 1 of 10, 1 of 7: it has no value that a window of 0.05 to 0.3 s could know."""
    assert held([key], 200)[0] <= most


def test_nine_of_ten_matmul_windows_that_miss_say_that_they_drift_or_are_wide():
    missed = [
        warns(summary)
        for key in ("power/mm:4096", "power/mm:8192", "series/mm:4096")
        for truth in [trimmed_mean(series(key)[START_UP:])]
        for summary in map(summarise, windows(key, 200))
        if not holds(summary, truth)
    ]
    assert len(missed) == 31
    assert 85 <= percent(missed) < 100  # a plateau between two steps of the power limit looks steady


def test_equal_calls_differ_by_more_than_independent_samples_allow_and_not_by_more_than_batches_do():
    """Two arms of the same call in 16 processes: 291 of 304 pairs agree by batches, 274 by 1.96 standard errors."""
    batches, naive = [], []
    for key in ONE_SAMPLE_GRAPHS:
        for process in recorded(key):
            first, second = map(by_round, process)
            one, other = summarise(first), summarise(second)
            width = math.hypot(one.high - one.estimate, other.high - other.estimate)
            batches.append(abs(one.estimate - other.estimate) <= width)
            width = math.hypot(naive_half(first), naive_half(second))
            naive.append(abs(np.mean(first) - np.mean(second)) <= width)
    error = 100 * math.sqrt(0.95 * 0.05 / len(batches))
    assert 95 - 2 * error <= percent(batches) <= 95 + 2 * error
    assert percent(naive) <= 95 - 3 * error


def test_batches_of_a_long_window_hold_a_swing_that_independent_samples_miss():
    """Windows of 0.64 s of swings with a period of 1 s: 12 of 15 by batches, 2 by 1.96 standard errors."""
    key, length = "power/mm:8192", 400
    late = series(key)[START_UP:]
    cut = windows(key, length, step=100)
    assert percent([holds(summarise(window), trimmed_mean(late)) for window in cut]) >= 75
    assert percent([abs(np.mean(window) - np.mean(late)) <= naive_half(window) for window in cut]) <= 20


@pytest.mark.parametrize(("count", "least"), [(100, 8), (130, 9), (200, 10)])
def test_a_recorded_start_up_is_found_as_a_drift_downwards(count, least):
    """In 8, 9 and 10 of 11 series that start 2 to 17 % slow."""
    drifts = [summarise(series(key)[:count]).drift for key in COLD]
    assert sum(drift < -TARGET for drift in drifts) >= least


@pytest.mark.parametrize("count", [100, 130, 200, 260])
def test_a_start_up_that_is_not_found_leaves_an_interval_too_wide_to_converge(count):
    assert all(warns(summarise(series(key)[:count])) for key in COLD)


@pytest.mark.parametrize(
    ("key", "count", "change"),
    [
        ("power/mm:4096", 250, 0.09),
        ("power/mm:8192", 100, 0.15),
        ("series/mm:4096", 600, 0.10),
        ("series/mm:8192", 85, 0.10),
    ],
)
def test_a_fall_of_the_clock_at_the_power_limit_is_found_with_its_size(key, count, change):
    assert summarise(series(key)[:count]).drift == pytest.approx(change, abs=0.02)


def test_a_step_between_two_captures_is_found():
    samples = recorded("step/mm:2048").reshape(10, -1)
    assert von_neumann([trimmed_mean(batch) for batch in samples.tolist()]) < 1
    assert summarise(series("step/mm:2048")).drift == pytest.approx(-0.013, abs=0.002)


@pytest.mark.parametrize(("length", "most", "most_beyond"), [(200, 1.0, 1.0), (400, 7.5, 3.0), (800, 5.0, 2.0)])
def test_quiet_series_raise_few_false_alarms(length, most, most_beyond):
    """A trend in 4 of 408, 15 of 203, 5 of 101 windows; one beyond half a percent, which costs a redo, in 4, 6, 2."""
    drifts = [summarise(window).drift for key in QUIET for window in windows(key, length)]
    assert percent([drift != 0 for drift in drifts]) <= most
    assert percent([abs(drift) > TARGET for drift in drifts]) <= most_beyond


def by_process(key: str) -> list[tuple[float, list[Summary]]]:
    """For each process: the value of all the others, and a summary of each arm."""
    processes = recorded(key)
    return [
        (trimmed_mean(np.delete(processes, i, axis=0).ravel().tolist()), [summarise(by_round(arm)) for arm in process])
        for i, process in enumerate(processes)
    ]


def test_the_interval_of_sampling_by_events_does_not_hold_what_other_processes_measure():
    """97 of 384 arms of kernels below 35 us; nine small kernels in a row are left out, being noisy beyond it."""
    short = [key for key in ONE_SAMPLE_GRAPHS if np.median(recorded(key)) < 35 and key != "one/chain:9"]
    found = [holds(s, truth) for key in short for truth, arms in by_process(key) for s in arms]
    assert len(found) == 384
    assert percent(found) <= 30


def test_events_on_a_stream_allow_for_the_3_to_4_us_that_they_read_too_much():
    for us, read_us in ((0.8, 4.4), (18.0, 21.7), (127.0, 130.9), (507.0, 510.9)):
        assert abs(read_us - us) <= FLOORS["cuda_events"].widen(0.0, read_us)


def test_the_floor_of_events_makes_the_whole_interval_hold_what_other_processes_measure():
    """583 of 608, 272 without it; the worst are mm:1024 with 26 of 32 and a spin of 20 us with 28."""
    found = {
        key: [holds(s, truth, EVENTS) for truth, arms in by_process(key) for s in arms] for key in ONE_SAMPLE_GRAPHS
    }
    flags = [flag for of in found.values() for flag in of]
    assert percent(flags) >= 95
    assert {key for key, of in found.items() if percent(of) < 90} == {"one/mm:1024", "one/s20"}


@pytest.mark.parametrize("case", VISITED)
def test_timestamps_spread_between_processes_by_a_quarter_of_what_events_do_at_most(case):
    """2.8 to 9.2 ns against 43 to 120 ns, in the same three processes."""
    spread = {
        clock: np.std([trimmed_mean(p.ravel().tolist()) for p in recorded(f"visits/{case}|{clock}")], ddof=1)
        for clock in ("stamps", "events")
    }
    assert spread["stamps"] < 0.010
    assert spread["events"] > 0.040


@pytest.mark.parametrize(("clock", "floor"), [("stamps", STAMPS), ("events", EVENTS)])
def test_every_visit_holds_the_value_of_all_visits_in_its_whole_interval_and_not_in_that_of_sampling(clock, floor):
    """Without the floor 86 of 120 by timestamps (2 of 30 for a spin, whose clock moves) and 53 of 120 by events."""
    sampling, whole = [], []
    for case in VISITED:
        visits = recorded(f"visits/{case}|{clock}")
        truth = trimmed_mean(visits.ravel().tolist())
        summaries = [summarise(visit.ravel().tolist()) for process in visits for visit in process]
        sampling += [holds(summary, truth) for summary in summaries]
        whole += [holds(summary, truth, floor) for summary in summaries]
    assert percent(whole) >= 99
    assert percent(sampling) <= 75


class Replay(Instrument):
    """An instrument that gives a recorded series from its start; a sample costs its time and 50 us on ``clock``."""

    name, round_size = "replay", 1

    early_us = ()

    def __init__(self, key: str, clock: SimpleNamespace) -> None:
        self.left, self.clock, self.given = iter(series(key)), clock, 0

    def samples(self, count: int) -> list[float]:
        times = [next(self.left) for _ in range(count)]
        self.clock.now += sum(times) * 1e-6 + count * 50e-6
        self.given += count
        return times


@pytest.fixture
def replay(monkeypatch):
    """``replay(key, samples=..., ...)``: what ``take`` makes of a series, and how many samples it asked for."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(ranks, "time", clock)
    defaults = {"samples": 800, "warmup_s": 0.02, "max_s": 0.6, "target_pct": 100 * TARGET}

    def taken(key: str, **changes: float) -> tuple[procedure.Taken, int]:
        instrument = Replay(key, clock)
        return procedure.take(instrument, SimpleNamespace(**(defaults | changes))), instrument.given

    return taken


@pytest.mark.parametrize("key", QUIET)
def test_a_quiet_series_converges_from_a_cold_start_to_the_value_of_the_rest(replay, key):
    taken, asked = replay(key)
    rest = trimmed_mean(series(key)[START_UP:])
    assert taken.converged
    assert holds(taken.summary, rest, STAMPS)
    assert holds(taken.summary, rest) == (key not in SLOW)
    assert asked <= 2200  # one warm-up, one look, and a redo where the clock moves


def test_a_recorded_start_up_is_thrown_away_and_sampled_anew(replay):
    """Without warm-up: the first 100 samples are off by 1.4 to 7.9 %, what is kept by 0.5 % at most."""
    redone = 0
    for key in COLD:
        rest = trimmed_mean(series(key)[START_UP:])
        taken, asked = replay(key, samples=100, warmup_s=0.0, max_s=0.3)
        first = summarise(series(key)[1:101])  # after the one sample that warms up
        if first.drift < -TARGET:
            redone += 1
            assert first.estimate > 1.01 * rest
            assert taken.summary.count == asked - 101 >= 100
            assert taken.summary.estimate == pytest.approx(rest, rel=0.005) or not taken.converged
    assert redone >= 9


def test_a_matmul_that_falls_to_the_power_limit_is_not_converged(replay):
    taken, asked = replay("power/mm:4096")
    assert (taken.summary.count, asked > 2 * 800) == (800, True)
    assert not taken.converged
    assert taken.summary.drift > TARGET
    taken, _ = replay("series/mm:8192")
    assert not taken.converged


def test_a_plateau_before_the_power_limit_looks_converged(replay):
    """What no rule on the times alone can see: the limit comes a second after the load."""
    taken, _ = replay("power/mm:8192")
    assert taken.converged
    assert taken.summary.estimate < 0.98 * trimmed_mean(series("power/mm:8192")[START_UP:])
