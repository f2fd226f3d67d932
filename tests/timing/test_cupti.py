"""How often the cupti_check has a call made, with a profiler that sees nothing."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")


def test_a_call_in_which_nothing_runs_differs_from_a_profiler_that_sees_nothing(monkeypatch):
    from runner.timing import cupti
    from runner.timing.cupti import BOUNDARY, CuptiTime, Record

    seen = [Record(float(i), i + 0.5, BOUNDARY, 7) for i in range(6)]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cupti, "record_calls", lambda call, before, calls: seen)
    assert cupti.observe(lambda: None, lambda: None, calls=2) == CuptiTime(0.0, 0.0, 0, False)
    assert cupti.observe(lambda: None, lambda: None, calls=3) is None  # one of them was not seen at all


@pytest.mark.parametrize(("call_s", "kernels", "calls"), [(1e-5, 1, 30), (1e-5, 100, 3), (0.026, 1, 3), (0.2, 1, 2)])
def test_a_long_call_is_watched_less_often(monkeypatch, clock, call_s, kernels, calls):
    from runner.timing import cupti

    asked = []
    monkeypatch.setattr(cupti, "time", clock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cupti, "record_calls", lambda call, before, calls: asked.append(calls) or [])
    assert cupti.observe(lambda: clock.sleep(call_s), lambda: None, kernels=kernels) is None
    assert asked == [calls]
