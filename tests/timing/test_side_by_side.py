"""Comparison over instruments whose samples are known."""

from __future__ import annotations

import pytest

from runner.timing.procedure import side_by_side


class Logged:
    """Gives what ``sample`` says of the number of samples taken so far, and notes that it was asked."""

    name = "logged"

    def __init__(self, clock, log, label, sample, cost_s=1e-5):
        self.clock, self.log, self.label, self.sample, self.cost_s = clock, log, label, sample, cost_s

    def samples(self, count):
        self.clock.sleep(count * self.cost_s)
        self.log += [self.label] * count
        return [self.sample(len(self.log))] * count

    def outputs(self):
        return iter(())


def test_every_round_has_every_call_and_the_order_is_shuffled(clock):
    log = []
    found = side_by_side([Logged(clock, log, label, lambda _: 1.0) for label in "abc"], 40, 1.0)
    assert found == [("logged", [1.0] * 10)] * 3
    rounds = [log[i : i + 30] for i in range(len(log) - 40 * 30, len(log), 30)]
    assert all({label: each.count(label) for label in "abc"} == dict.fromkeys("abc", 10) for each in rounds)
    assert len({"".join(each) for each in rounds}) == 6


def test_what_happens_meanwhile_is_in_the_same_batch_of_all(clock):
    log = []
    (_, one), (_, other) = side_by_side([Logged(clock, log, label, lambda at: 100.0 + at) for label in "ab"], 40, 1.0)
    assert one[-1] > 1.5 * one[0]
    assert all(a / b == pytest.approx(1, abs=0.1) for a, b in zip(one, other, strict=True))


def test_slow_calls_get_one_sample_a_round_and_the_slowest_none(clock):
    log = []
    found = side_by_side([Logged(clock, log, label, lambda _: 1.0, cost_s=0.004) for label in "ab"], 40, 0.15)
    assert found is not None
    assert log.count("a") < 60
    assert side_by_side([Logged(clock, [], "a", lambda _: 1.0, cost_s=0.02)], 40, 0.1) is None


@pytest.mark.parametrize(("cost_s", "times"), [(0.04, 2), (0.29, 2), (0.011, 12)])
def test_who_finds_no_time_for_ten_rounds_has_not_spent_much_of_it(clock, cost_s, times):
    """0.3 s for each of two calls."""
    log = []
    found = side_by_side([Logged(clock, log, label, lambda _: 1.0, cost_s=cost_s) for label in "ab"], 40, 0.3)
    assert (found is None) == (times == 2)
    assert log.count("a") >= times
    assert log.count("a") * cost_s < 2 * 0.3


def test_calls_of_which_not_one_is_affordable_are_made_once(clock):
    log = []
    assert side_by_side([Logged(clock, log, label, lambda _: 1.0, cost_s=0.05) for label in "ab"], 40, 0.01) is None
    assert sorted(log) == ["a", "b"]
