"""How often the witness has a call made, with a profiler that sees nothing."""

from __future__ import annotations

import time

import pytest
import torch

pytest.importorskip("triton")


@pytest.mark.parametrize(("call_s", "kernels", "calls"), [(0.0, 1, 30), (0.0, 100, 3), (0.026, 1, 3), (0.2, 1, 2)])
def test_a_long_call_is_watched_less_often(monkeypatch, call_s, kernels, calls):
    from runner.measure import witness

    asked = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(witness, "_records", lambda call, before, calls: asked.append(calls) or [])
    assert witness.observe(lambda: time.sleep(call_s), lambda: None, kernels=kernels) is None
    assert asked == [calls]
