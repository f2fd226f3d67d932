"""What a caller waits for a call, on a host and a GPU whose times are known."""

from __future__ import annotations

import pytest

from runner.timing import latency
from runner.timing.call import Call
from runner.timing.latency import latency_columns

MAX_S = 0.6  # the default of ``measure.benchmark.max_s``

US = 1e-6


class Gpu:
    """A host that launches a call in ``host_us``, and a GPU that works ``gpu_us`` on it; the clock moves by both."""

    def __init__(self, clock, host_us, gpu_us):
        self.clock, self.host_us, self.gpu_us = clock, host_us, gpu_us
        self.calls = self.resets = 0
        self.free_s = 0.0  # when the GPU has done what was launched

    def run(self):
        self.clock.sleep(self.host_us * US)
        self.free_s = max(self.free_s, self.clock.now) + self.gpu_us * US
        self.calls += 1
        return ()

    def reset(self):
        self.clock.sleep(300 * US)
        self.free_s = max(self.free_s, self.clock.now) + 300 * US
        self.resets += 1

    def synchronize(self):
        self.clock.now = max(self.clock.now, self.free_s)


@pytest.fixture
def gpu(clock, monkeypatch):
    """``gpu(host_us, gpu_us)``: that machine, which ``latency_columns`` takes for this one."""

    def build(host_us, gpu_us):
        made = Gpu(clock, host_us, gpu_us)
        monkeypatch.setattr(latency, "time", clock)
        monkeypatch.setattr(latency, "synchronize", made.synchronize)
        return made

    return build


@pytest.mark.parametrize(("host_us", "gpu_us"), [(5.0, 2.0), (8.0, 40.0), (39.8, 15.3), (1000.0, 100.0)])
@pytest.mark.parametrize("resets", [False, True])
def test_a_call_is_timed_alone_until_it_returns_and_back_to_back(gpu, host_us, gpu_us, resets):
    machine = gpu(host_us, gpu_us)
    columns = latency_columns(Call(machine.run, machine.reset if resets else None), MAX_S)
    assert columns["latency_us"] == pytest.approx(host_us + gpu_us)
    assert columns["host_us"] == pytest.approx(host_us)
    longer_us, shorter_us = max(host_us, gpu_us), min(host_us, gpu_us)
    count = 100 if host_us + gpu_us < 80 else 7
    assert columns["pipelined_us"] == pytest.approx(longer_us + shorter_us / count)
    assert [columns[f"{name}_pct"] for name in ("latency", "host", "pipelined")] == pytest.approx([0, 0, 0], abs=1e-6)


def test_inputs_are_restored_before_each_call_and_not_between_calls_back_to_back(gpu):
    machine = gpu(5.0, 2.0)
    latency_columns(Call(machine.run, machine.reset), MAX_S)
    alone = max(latency.CALLS, round(latency.LOOP_S / (607 * US)))  # a call and a reset
    assert machine.resets == pytest.approx(alone + (machine.calls - alone) / 100, abs=2)


@pytest.mark.parametrize(
    ("gpu_us", "longest_s"), [(0.0, 0.1), (30.0, 0.1), (700.0, 0.1), (2000.0, 0.2), (9000.0, 0.26)]
)
def test_it_takes_a_tenth_of_a_second_and_more_if_calls_are_long(gpu, clock, gpu_us, longest_s):
    latency_columns(Call(gpu(10.0, gpu_us).run), MAX_S)
    assert clock.now <= longest_s


@pytest.mark.parametrize("gpu_us", [2.0, 30.0, 300.0])
def test_it_takes_a_tenth_of_that_time_if_samples_do(gpu, clock, gpu_us):
    columns = latency_columns(Call(gpu(10.0, gpu_us).run), MAX_S / 10)
    assert clock.now <= 0.1 / 10 if gpu_us < 100 else clock.now <= 0.03  # 70 calls, five times at most
    assert columns["latency_us"] == pytest.approx(10.0 + gpu_us)


def test_a_long_call_is_made_five_times(gpu):
    machine = gpu(10.0, 2e6)
    columns = latency_columns(Call(machine.run), MAX_S)
    assert machine.calls == 5
    assert columns["pipelined_us"] == columns["latency_us"] == pytest.approx(2_000_010)


def test_the_first_calls_do_not_count(gpu):
    machine = gpu(5.0, 2.0)

    def run():
        machine.gpu_us = 2.0 if machine.calls >= 300 else 9.0  # until caches and clocks are warm
        return machine.run()

    columns = latency_columns(Call(run), MAX_S)
    assert columns["latency_us"] == pytest.approx(7.0)
    assert columns["latency_pct"] == pytest.approx(0.0, abs=1e-6)


class Sleepers:
    """Two ranks of one clock that sleep until both have come; a host that has slept takes 9 us more for a call."""

    count = 2

    def __init__(self, machine):
        self.machine, self.now = machine, lambda: machine.clock.now
        self.meet = lambda: None

    def slowest(self, values):
        self.machine.host_us = 14.0
        return list(values)


@pytest.mark.parametrize("resets", [False, True])
def test_the_hosts_of_ranks_that_have_slept_are_warm_again(gpu, monkeypatch, resets):
    machine = gpu(5.0, 2.0)
    monkeypatch.setattr(latency.ranks, "current", Sleepers(machine))

    def run():
        machine.run()
        machine.host_us = 5.0

    columns = latency_columns(Call(run, machine.reset if resets else None), MAX_S)
    assert columns["latency_us"] == pytest.approx(7.0)
    assert columns["pipelined_us"] == pytest.approx(5.02)


def test_noise_widens_the_interval(gpu):
    machine = gpu(10.0, 5.0)

    def run():
        machine.host_us = 10.0 + 3.0 * (machine.calls // 40 % 2)  # two modes
        return machine.run()

    columns = latency_columns(Call(run), MAX_S)
    assert 0 < columns["latency_pct"] < columns["host_pct"] < 20
