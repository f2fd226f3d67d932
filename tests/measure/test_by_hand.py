"""``measure=by_hand``: the calls of a script, timed by the host's clock, and what is made of their times."""

from __future__ import annotations

import json

import pytest

from runner.measure.by_hand import ByHand
from runner.worker.again import main


@pytest.mark.parametrize("script", [{"warmup": 2, "tracer": False}, {"warmup": 0, "tracer": True}])
def test_a_script_times_each_of_its_calls_and_no_other(case, tmp_path, script):
    one = case(
        "naive",
        "softmax",
        rows=3,
        cols=8,
        dtype="float32",
        tf32=False,
        data="normal",
        layout="contiguous",
        **{"pass": "fwd"},
    )
    asked = {"case": one.to_record(), "calls": 3, "cold_l2": True, "script": {"synchronize": True, **script}}
    (tmp_path / "case.json").write_text(json.dumps({**asked, "result": str(tmp_path / "again.json")}))
    assert main(tmp_path / "case.json") == 0
    calls_us = json.loads((tmp_path / "again.json").read_text())["calls_us"]
    assert len(calls_us) == 3
    assert min(calls_us) > 0


def test_its_figures_are_those_of_a_script():
    figures = ByHand(warmup=0, trials=3, synchronize=True, tracer=False).figures([30.0, 10.0, 20.0])
    assert figures.pop("by_hand_pct") == pytest.approx(100 * 4.303 * 10 / 3**0.5 / 20)
    assert figures == {
        "by_hand_us": 20,
        "by_hand_first_us": 30,
        "by_hand_std_us": 10,
        "by_hand_min_us": 10,
        "by_hand_max_us": 30,
    }
    assert ByHand(warmup=0, trials=1, synchronize=True, tracer=False).figures([5.0])["by_hand_us"] == 5
