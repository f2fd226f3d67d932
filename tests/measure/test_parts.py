"""``measure=parts``: each part of a step has its time, and all together have the time of the step."""

from __future__ import annotations

import gc
import itertools
import time

import pytest

from runner.kernels.spans import span
from runner.measure import CannotMeasure, MeasureContext
from runner.measure.parts import Parts
from runner.timing.call import Call

SECONDS = {"load": 0.001, "forward": 0.002, "backward": 0.004, "optimizer_step": 0.001}


def steps(parts):
    for index in range(2):
        with span(f"step_{index}"):
            for name, seconds in parts.items():
                with span(name), span("layer_0"):
                    time.sleep(seconds)


def test_parts_add_up_to_the_step():
    figures = Parts(calls=3, least_s=0).measure(Call(lambda: steps(SECONDS)), MeasureContext("cpu", None))
    assert list(figures) == [*(f"{name}_us" for name in SECONDS), "step_us", "parts_pct"]
    assert all(figures[f"{name}_us"] >= 1e6 * seconds for name, seconds in SECONDS.items())
    assert figures["step_us"] >= 8000
    assert sum(figures[f"{name}_us"] for name in SECONDS) >= 8000
    assert figures["parts_pct"] > 0


def test_a_host_that_becomes_slower_between_two_calls_does_not_change_their_sum():
    calls = itertools.count()

    def run():
        steps(SECONDS if next(calls) < 7 else {name: 3 * seconds for name, seconds in SECONDS.items()})

    figures = Parts(calls=5, least_s=0).measure(Call(run), MeasureContext("cpu", None))
    assert next(calls) == 12, "a first call of each kind, and five"
    assert 80 < figures["parts_pct"] < 125, "the medians of both kinds have a ratio of 3"


def test_short_calls_are_repeated():
    calls = itertools.count()

    def run():
        next(calls)
        steps({"forward": 0.0001})

    Parts(calls=1, least_s=0.2).measure(Call(run), MeasureContext("cpu", None))
    assert next(calls) > 20


def test_no_garbage_is_collected_while_parts_are_timed():
    collecting = []

    def run():
        collecting.append(gc.isenabled())
        steps(SECONDS)

    Parts(calls=1, least_s=0).measure(Call(run), MeasureContext("cpu", None))
    assert collecting == [False] * 4
    assert gc.isenabled()


def test_a_call_without_parts_is_not_measured():
    def outside_of_a_step():
        with span("forward"):
            pass

    for run in (lambda: steps({}), lambda: steps({"another": 0.0}), outside_of_a_step):
        with pytest.raises(CannotMeasure, match="no parts: take a workload that trains"):
            Parts(calls=1, least_s=0).measure(Call(run), MeasureContext("cpu", None))
