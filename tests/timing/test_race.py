"""The race over instruments whose times are known: who drops out, when it ends, and what it costs."""

from __future__ import annotations

import math
import random
from itertools import accumulate, repeat

import pytest

from runner.timing.instrument import Instrument
from runner.timing.procedure import paired_rounds, race
from runner.timing.statistics import LEVEL, Ratio, beaten

TARGET_PCT = 0.5


class Noisy(Instrument):
    """Calls of ``us``, with a spread of each sample and a drift that all share."""

    name = "graph_timestamps"

    def __init__(self, us, chance, drift, spread, clock=None, cost_s=0.0):
        self.us, self.chance, self.drift, self.spread = us, chance, drift, spread
        self.clock, self.cost_s = clock, cost_s

    def samples(self, count):
        if self.clock:
            self.clock.sleep(count * self.cost_s)
        return [self.us * math.exp(next(self.drift) + self.chance.gauss(0, self.spread)) for _ in range(count)]


def field(times, seed=0, spread=0.01, clock=None, cost_s=0.0):
    chance = random.Random(seed)
    drift = accumulate(repeat(0.0), lambda last, _: 0.98 * last + chance.gauss(0, 0.002))
    return [Noisy(us, chance, drift, spread, clock, cost_s) for us in times]


def left(found):
    return [place for place, (_, means, *_) in enumerate(found) if means]


def calls(found):
    return sum(count for _, _, count, _ in found)


def test_the_true_fastest_is_kept_and_a_third_of_the_calls_suffices():
    """Ten candidates, four of them equal, 40 times."""
    times = [50.0, 50.0, 50.0, 50.0, 51.0, 52.0, 55.0, 60.0, 70.0, 80.0]
    found = [race(field(times, seed), 40, 1.0, TARGET_PCT) for seed in range(40)]
    assert sum(0 not in left(one) for one in found) <= LEVEL * len(found)
    assert all(left(one)[-1] <= 4 for one in found)
    full = paired_rounds(field(times), 40, 1.0, TARGET_PCT)
    assert max(map(calls, found)) <= calls(full) / 3


def test_those_left_have_ten_means_of_all_their_samples_and_the_others_have_few_samples():
    found = race(field([50.0, 50.1, 75.0]), 40, 1.0, TARGET_PCT)
    (_, one, often, _), (_, other, as_often, _), (_, none, few, _) = found
    assert len(one) == len(other) == 10
    assert none == []
    assert often == as_often > few == 20


def test_it_ends_after_as_many_samples_as_a_comparison_takes_at_most():
    found = race(field([50.0, 50.0], spread=0.5), 40, 1.0, TARGET_PCT)
    assert [count for _, _, count, _ in found] == [1600, 1600]
    assert left(found) == [0, 1]


@pytest.mark.parametrize(("cost_s", "most"), [(0.001, 110), (0.019, 12), (0.023, None)])
def test_it_ends_when_the_time_is_up_and_ten_rounds_may_take_twice_the_time(clock, cost_s, most):
    found = race(field([50.0, 50.0], spread=0.5, clock=clock, cost_s=cost_s), 40, 0.1, TARGET_PCT)
    assert (found is None) == (most is None)
    assert found is None or 10 <= found[0][2] <= most


def test_one_that_is_far_ahead_wins_at_the_first_look():
    assert [count for _, _, count, _ in race(field([50.0, 90.0, 90.0]), 40, 1.0, TARGET_PCT)] == [20, 20, 20]


def test_a_call_that_does_nothing_drops_nobody_out():
    assert left(race(field([0.0, 90.0]), 40, 1.0, TARGET_PCT)) == [0, 1]


def test_what_has_no_interval_is_never_left_out():
    over = {"a": Ratio(0.0, 0.0, 9, paired=True), "b": Ratio(2.0, math.inf, 1, paired=False)}
    assert not beaten(over, 0.05)
    assert beaten({**over, "c": Ratio(0.5, 0.01, 9, paired=True)}, 0.05) == {"c"}
