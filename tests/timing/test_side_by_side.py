"""Comparison over instruments whose samples are known."""

from __future__ import annotations

import pytest

from runner.timing.call import Batches
from runner.timing.instrument import Instrument
from runner.timing.procedure import paired_rounds

TARGET_PCT = 2.0


class Logged(Instrument):
    """Gives what ``sample`` says of the number of samples taken so far, and notes that it was asked."""

    name = "logged"

    def __init__(self, clock, log, label, sample, cost_s=1e-5):
        self.clock, self.log, self.label, self.sample, self.cost_s = clock, log, label, sample, cost_s

    def samples(self, count):
        self.clock.sleep(count * self.cost_s)
        self.log += [self.label] * count
        return [self.sample(len(self.log))] * count


def test_every_round_has_every_call_and_the_order_is_shuffled(clock):
    log = []
    found = paired_rounds([Logged(clock, log, label, lambda _: 1.0) for label in "abc"], 40, 1.0, TARGET_PCT)
    assert found == [Batches("logged", [1.0] * 10, log.count("a"))] * 3
    rounds = [log[i : i + 30] for i in range(len(log) - 40 * 30, len(log), 30)]
    assert all({label: each.count(label) for label in "abc"} == dict.fromkeys("abc", 10) for each in rounds)
    assert len({"".join(each) for each in rounds}) == 6


def test_what_happens_meanwhile_is_in_the_same_batch_of_all(clock):
    log = []
    (_, one, *_), (_, other, *_) = paired_rounds(
        [Logged(clock, log, label, lambda at: 100.0 + at) for label in "ab"], 40, 1.0, TARGET_PCT
    )
    assert one[-1] > 1.5 * one[0]
    assert all(a / b == pytest.approx(1, abs=0.1) for a, b in zip(one, other, strict=True))


def test_mirrored_rounds_come_in_twos_of_which_the_second_is_the_first_reversed(clock):
    log = []
    assert paired_rounds(
        [Logged(clock, log, label, lambda _: 1.0) for label in "abc"], 40, 1.0, TARGET_PCT, on_cpu=True
    )
    orders = ["".join(log[i : i + 30 : 10]) for i in range(len(log) - 40 * 30, len(log), 30)]
    first = int(orders[0] != orders[1][::-1])  # a round was tried before
    twos = [(orders[i], orders[i + 1]) for i in range(first, 39, 2)]
    assert all(one == other[::-1] for one, other in twos)
    assert len({one for one, _ in twos}) == 6


@pytest.mark.parametrize(
    ("disturbed", "longest_s", "rounds"),
    [(0.0, 1.0, 40), (0.01, 1.0, 40), (0.3, 1.0, 160), (0.3, 0.0065, 65)],
)
def test_there_are_four_times_as_many_rounds_if_the_interval_is_too_wide_and_time_is_left(
    clock, disturbed, longest_s, rounds
):
    """Samples 100 to 200 of 400 are longer in one of the calls."""
    log = []
    calls = [Logged(clock, log, label, lambda _: 1.0) for label in "ab"]
    calls[0].sample = lambda at: 1.0 + disturbed * (200 < at < 400)
    paired_rounds(calls, 40, longest_s, TARGET_PCT)
    assert log.count("a") == pytest.approx(10 * rounds, abs=25)


@pytest.mark.parametrize(
    ("cost_s", "samples"), [(0.004, (40, 47)), (0.016, (10, 14)), (0.019, (10, 14)), (0.021, None)]
)
def test_slow_calls_get_one_sample_a_round_and_ten_rounds_if_these_fit_into_twice_the_time(clock, cost_s, samples):
    """0.1 s for each of two calls."""
    log = []
    found = paired_rounds(
        [Logged(clock, log, label, lambda _: 1.0, cost_s=cost_s) for label in "ab"], 40, 0.1, TARGET_PCT
    )
    assert (found is None) == (samples is None)
    least, most = samples or (1, 3)
    assert least <= log.count("a") <= most


def test_calls_that_become_slower_are_given_up_after_twice_the_time(clock):
    log = []
    calls = [Logged(clock, log, label, lambda _: 1.0, cost_s=0.001) for label in "ab"]

    def slower(at):
        for call in calls:
            call.cost_s = 0.05 if at > 30 else 0.001
        return 1.0

    for call in calls:
        call.sample = slower
    assert paired_rounds(calls, 40, 0.1, TARGET_PCT) is None
    assert clock.now < 2 * 2 * 0.1 + 2 * 10 * 0.05


def test_one_slow_round_does_not_make_the_calls_slow(clock):
    """The first round is delayed by another process: there are ten samples a round all the same."""
    log = []
    calls = [Logged(clock, log, label, lambda at: clock.sleep(0.04 * (at < 3)) or 1.0) for label in "ab"]
    assert paired_rounds(calls, 40, 0.1, TARGET_PCT) is not None
    assert log.count("a") >= 400


def test_calls_of_which_not_one_is_affordable_are_made_once(clock):
    log = []
    assert (
        paired_rounds([Logged(clock, log, label, lambda _: 1.0, cost_s=0.05) for label in "ab"], 40, 0.01, TARGET_PCT)
        is None
    )
    assert sorted(log) == ["a", "b"]


def test_on_a_cpu_what_only_delays_is_not_in_the_ratio(clock):
    """Four of ten samples of one call are delayed, and none of the other."""
    log = []
    calls = [Logged(clock, log, label, lambda _: 1.0) for label in "ab"]
    calls[0].samples = lambda count: [1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 1.0][:count]
    (_, delayed, *_), (_, other, *_) = paired_rounds(calls, 40, 1.0, TARGET_PCT, on_cpu=True)
    assert delayed == other == [1.0] * 10
