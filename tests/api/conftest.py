"""The timer in a caller's process, in a fraction of its usual time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest


@pytest.fixture
def brief(monkeypatch):
    """The fewest samples that give an interval."""
    from runner.subject import in_process
    from runner.subject.in_process import DEFAULTS

    settings = replace(DEFAULTS, samples=20, max_s=0.01, warmup_s=0.0, paired_rounds=10)
    monkeypatch.setattr(in_process, "DEFAULTS", settings)


class Clock:
    """A clock that moves only while a call runs: as a function of ``takes`` says, or by 10 us."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def takes(self, us: float, function):
        """``function``, which takes so long by this clock."""

        def timed(*args):
            self.now += round(1000 * us)
            return function(*args)

        return timed


@pytest.fixture
def clock(monkeypatch, brief) -> Clock:
    """The host's clock, on a machine that nobody else uses."""
    from runner.timing import cpu, ranks

    clock = Clock()
    seconds = SimpleNamespace(perf_counter=lambda: clock.now / 1e9, sleep=None)
    monkeypatch.setattr(ranks, "time", seconds)
    real = cpu.PerfCounter

    class Timed(real):
        def __init__(self, run, reset=None) -> None:
            def timed() -> object:
                before, result = clock.now, run()
                clock.now += 10_000 * (clock.now == before)
                return result

            super().__init__(timed, reset, clock)

    monkeypatch.setattr(cpu, "PerfCounter", Timed)
    monkeypatch.setattr(cpu, "waiting", lambda threads: lambda: 0.0)
    return clock
