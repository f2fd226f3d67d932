"""Who works long rests as long, and its first call afterwards does not count."""

from __future__ import annotations

import pytest

from runner.timing import procedure


@pytest.mark.parametrize(("last_us", "slept_s", "calls"), [(99.0, [], 0), (101.0, [0.25], 1)])
def test_long_calls_alone_are_followed_by_a_rest(monkeypatch, last_us, slept_s, calls):
    slept, called = [], []
    monkeypatch.setattr(procedure.time, "sleep", slept.append)
    procedure.rest(last_us, 0.25, lambda: called.append(len(slept)))
    assert slept == slept_s
    assert called == [1] * calls  # after it
