"""Two calls → faster, slower, same or unclear, against series whose truth is known."""

from __future__ import annotations

import math
import random

import pytest

from runner.timing import statistics
from runner.timing.statistics import NO_FLOOR, Floor, Ratio, pair_floors, shared_us

NOTHING = (NO_FLOOR, NO_FLOOR)


def batches(chance, mean, noise=0.001, common=None):
    """Ten batch means; what is ``common`` to both sides of a pair moves each by the same share."""
    common = common or [0.0] * 10
    return [mean * math.exp(shared + chance.gauss(0, noise)) for shared in common]


def test_what_moves_both_sides_alike_is_not_in_their_ratio():
    chance = random.Random(1)
    swing = [0.05 * math.sin(i) for i in range(10)]
    ratio = statistics.paired(batches(chance, 103, common=swing), batches(chance, 100, common=swing), NOTHING)
    assert math.exp(ratio.log) == pytest.approx(1.03, abs=0.002)
    assert ratio.half < 0.003
    assert ratio.word == "slower"


def test_equal_calls_are_the_same_and_next_to_never_different():
    chance = random.Random(2)
    words = [statistics.paired(batches(chance, 20), batches(chance, 20), NOTHING).word for _ in range(1000)]
    assert words.count("same") > 980
    assert words.count("faster") + words.count("slower") <= 2


def test_noise_makes_unclear_and_never_same():
    chance = random.Random(3)
    words = [
        statistics.paired(batches(chance, 20, noise=0.02), batches(chance, 20, noise=0.02), NOTHING).word
        for _ in range(300)
    ]
    assert words.count("unclear") > 290
    assert words.count("same") == 0


def test_one_percent_is_found_where_the_noise_allows():
    chance = random.Random(4)
    found = [statistics.paired(batches(chance, 101), batches(chance, 100), NOTHING).word for _ in range(300)]
    assert found.count("slower") > 285
    back = [statistics.paired(batches(chance, 100), batches(chance, 101), NOTHING).word for _ in range(300)]
    assert back.count("faster") > 285


def test_an_instruments_floor_widens_short_calls_most():
    chance = random.Random(5)
    floors = pair_floors("graph_timestamps", "graph_timestamps")
    short, long = (statistics.paired(batches(chance, us, 0.0), batches(chance, us, 0.0), floors) for us in (1.0, 100.0))
    assert short.half == pytest.approx(math.sqrt(2) * 2 * math.hypot(0.005, 0.0003), rel=0.01)
    assert long.half == pytest.approx(math.sqrt(2) * 2 * math.hypot(0.00005, 0.0003), rel=0.01)


def test_two_instruments_share_no_error_that_could_cancel():
    one, other = pair_floors("graph_timestamps", "stream_timestamps")
    assert one.us > pair_floors("graph_timestamps", "graph_timestamps")[0].us
    assert other == Floor(us=0.4, share=0.001)


@pytest.mark.parametrize(
    ("name", "longer_us", "short_us", "long_us"),
    [("cuda_events", 3.6, 5.0, 10.0), ("cuda_events", 3.6, 1.0, 40.0), ("stream_timestamps", 0.7, 1.0, 30.0)],
)
def test_what_is_too_long_on_both_sides_is_not_gone_from_their_ratio(name, longer_us, short_us, long_us):
    read = [[us + longer_us] * 10 for us in (long_us, short_us)]
    ratio = statistics.paired(*read, pair_floors(name, name), shared_us(name, name))
    assert abs(ratio.log - math.log(long_us / short_us)) < ratio.half
    assert ratio.word == "slower"
    alike = statistics.paired(read[0], read[0], pair_floors(name, name), shared_us(name, name))
    assert alike.half < 0.005


def test_separate_times_are_compared_by_their_intervals():
    ratio = statistics.unpaired((110.0, 0.03), (100.0, 0.04))
    assert (ratio.log, ratio.half) == (pytest.approx(math.log(1.1)), pytest.approx(0.05))
    assert ratio.word == "slower"
    assert not ratio.paired
    assert statistics.unpaired((102.0, 0.03), (100.0, 0.04)).word == "unclear"


def test_separate_times_are_no_nearer_than_the_machine_repeats_itself():
    ratio = statistics.unpaired((110.0, 0.003), (100.0, 0.004), apart=0.12)
    assert (ratio.half, ratio.word) == (pytest.approx(0.12, rel=0.01), "unclear")
    unknown = statistics.unpaired((1e6, 0.003), (100.0, 0.004), apart=math.inf)
    assert statistics.words([unknown]) == ["unclear"]


def test_several_processes_speak_by_what_they_differ():
    apart = statistics.pooled([Ratio(log, 0.001, 9, True) for log in (0.00, 0.02, 0.04)])
    assert apart.log == pytest.approx(0.02)
    assert apart.half == pytest.approx(4.303 * 0.02 / math.sqrt(3))
    alike = statistics.pooled([Ratio(0.02, 0.003, 9, True)] * 3)
    assert alike.half == pytest.approx(0.003 / math.sqrt(3))
    assert statistics.pooled([Ratio(0.02, 0.003, 9, True)]) == Ratio(0.02, 0.003, 9, True)


def test_what_no_process_sees_is_seen_by_no_number_of_them():
    pooled = statistics.pooled([Ratio(0.05, 0.05, 9, True, systematic=0.04)] * 100)
    assert pooled.half == pytest.approx(math.hypot(0.04, 0.03 / 10))
    assert pooled.systematic == 0.04


def test_two_processes_say_no_less_than_one():
    one = Ratio(0.05, 0.006, 9, True)
    assert statistics.words([one] * 40) == ["slower"] * 40
    assert statistics.words([statistics.pooled([one, one])] * 40) == ["slower"] * 40


def test_of_many_pairs_some_differ_by_chance_and_are_called_unclear():
    just = Ratio(0.0101, 0.005, 9, True)  # alone: 5.1 thousandths beyond the zone of 5
    assert just.word == "slower"
    assert statistics.words([just]) == ["slower"]
    assert statistics.words([just] * 40) == ["unclear"] * 40
    sure = Ratio(0.2, 0.005, 9, True)
    assert statistics.words([sure, just, Ratio(0.0, 0.001, 9, True)] + [just] * 40)[:3] == ["slower", "unclear", "same"]


def test_a_table_of_equal_calls_has_a_wrong_word_in_less_than_5_of_100():
    chance = random.Random(6)
    tables = 200
    wrong = sum(
        any(
            word in ("faster", "slower")
            for word in statistics.words(
                [
                    statistics.paired(batches(chance, 20, 0.004), batches(chance, 20 * 1.005, 0.004), NOTHING)
                    for _ in range(20)
                ]
            )
        )
        for _ in range(tables)
    )
    assert wrong <= 0.05 * tables + 2 * math.sqrt(0.05 * 0.95 * tables)  # a difference as wide as the zone: the worst


@pytest.mark.parametrize(
    ("freedom", "t", "beyond"),
    [(1, 12.706, 0.025), (2, 4.303, 0.025), (4, 2.776, 0.025), (8, 3.355, 0.005), (9, 2.262, 0.025), (9, 3.250, 0.005)],
)
def test_students_tail_is_that_of_the_tables(freedom, t, beyond):
    assert statistics.survival(t, freedom) == pytest.approx(beyond, rel=0.002)
    assert statistics.survival(0.0, freedom) == pytest.approx(0.5)
