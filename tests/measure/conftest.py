"""Time that passes only where a test says so: what a busy machine does meanwhile changes no outcome."""

from __future__ import annotations

import pytest


class Clock:
    """Stands in for the module ``time``, where a module imports that."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all that decides by time how much to sample."""
    from runner.measure import procedure, side_by_side

    clock = Clock()
    for module in (procedure, side_by_side):
        monkeypatch.setattr(module, "time", clock)
    return clock
