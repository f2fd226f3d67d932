"""The gravest doubt comes first, and says why in one sentence."""

from __future__ import annotations

import pytest

from runner.timing.verdict import UNCERTAIN, UNTRUE, verdict

DOUBTS = (*UNTRUE, *UNCERTAIN)

GOOD = {"gpu_us": 10.0, "converged": True, "stat_pct": 0.1, "interval_pct": 0.3, "drift_pct": 0.0, "samples": 800}
GOOD |= {"instrument": "graph_timestamps", "sm_clock_mhz": 1975.0, "unloaded_clock_mhz": 1980.0, "n_kernels": 1}
GOOD |= {"cupti_us": 10.1, "latency_us": 40.0, "gpu_warm_us": 9.0, "pipelined_us": 9.9}

DOUBTFUL = {
    "impossible": ({"fastest_possible_us": 12.0}, "this GPU cannot do it in less than 12 us"),
    "contradicted": ({"cupti_us": 13.0}, "CUPTI measured 13 us and graph_timestamps 10 us"),
    "contended": ({"cpu_wait_pct": 30.0}, "its threads waited 30 % of the time for other processes"),
    "power_capped": ({"sm_clock_mhz": 1600.0}, "its clock was 1600 of 1980 MHz"),
    "not_converged": ({"converged": False, "stat_pct": 3.0}, "the interval is +-3.0 % after 800 samples"),
    "timer_limited": ({"interval_pct": 0.8}, "graph_timestamps measures so short a call to +-0.8 % at best"),
    "launch_bound": ({"pipelined_us": 15.3}, "back to back, a call takes 15.3 us, of which the GPU works 9 us"),
}


def test_nothing_against_it_is_ok():
    assert verdict(GOOD, 0.5) == {"verdict": "ok", "verdict_reason": ""}


@pytest.mark.parametrize("word", DOUBTS)
def test_each_doubt_has_its_word_and_its_sentence(word):
    change, sentence = DOUBTFUL[word]
    result = verdict(GOOD | change, 0.5)
    assert result["verdict"] == word
    assert sentence in result["verdict_reason"]


def test_a_call_in_which_nothing_runs_gives_what_was_there():
    result = verdict(GOOD | {"n_kernels": 0, "interval_pct": 20.0}, 0.5)
    assert (result["verdict"], "ran no kernel" in result["verdict_reason"]) == ("impossible", True)


def test_a_clock_that_no_limit_holds_down_is_no_doubt():
    slowed = GOOD | {"sm_clock_mhz": 1850.0}
    assert verdict(slowed | {"throttle": ""}, 0.5)["verdict"] == "ok"
    limited = verdict(slowed | {"throttle": "power limit"}, 0.5)
    assert limited["verdict"] == "power_capped"
    assert "(power limit): its clock was 1850 of 1980 MHz" in limited["verdict_reason"]


def test_an_interval_that_sampling_alone_makes_wide_is_not_the_timers_fault():
    assert verdict(GOOD | {"stat_pct": 0.48, "interval_pct": 0.52}, 0.5)["verdict"] == "ok"


def test_a_timer_offset_that_has_moved_is_due_to_other_processes():
    result = verdict(GOOD | {"timer_drift_us": -0.37}, 0.5)
    assert (result["verdict"], "dropped by 0.37 us" in result["verdict_reason"]) == ("contended", True)
    result = verdict(GOOD | {"timer_drift_us": 0.37}, 0.5)
    assert (result["verdict"], "rose by 0.37 us" in result["verdict_reason"]) == ("contended", True)
    slowed = GOOD | {"timer_drift_us": 0.37, "sm_clock_mhz": 1850.0, "throttle": ""}  # which makes it longer, too
    assert verdict(slowed, 0.5)["verdict"] == "ok"


def test_the_gravest_doubt_is_said():
    everything = GOOD.copy()
    for change, _ in DOUBTFUL.values():
        everything |= change
    order = []
    for word in DOUBTS:
        order.append(verdict(everything, 0.5)["verdict"])
        everything |= {key: GOOD.get(key, 0.0) for key in DOUBTFUL[word][0]}
    assert order == list(DOUBTS)


@pytest.mark.parametrize(
    ("gpu_us", "warm_us", "pipelined_us", "word"),
    [
        (15.3, 14.0, 16.7, "ok"),  # a call alone takes 33 us, which launching does not limit
        (15.3, 14.0, 16.9, "launch_bound"),
        (15.3, None, 18.3, "ok"),
        (15.3, None, 18.5, "launch_bound"),
        (2.0, 1.9, 2.8, "ok"),  # by less than a microsecond
        (2.0, 1.9, 3.0, "launch_bound"),
    ],
)
def test_launching_limits_calls_that_take_longer_back_to_back_than_the_gpu_works(gpu_us, warm_us, pipelined_us, word):
    row = GOOD | {"gpu_us": gpu_us, "cupti_us": gpu_us, "pipelined_us": pipelined_us}
    del row["gpu_warm_us"]
    assert verdict(row | ({"gpu_warm_us": warm_us} if warm_us else {}), 0.5)["verdict"] == word


def test_what_the_timed_calls_gave_weighs_most():
    said = verdict(GOOD | {"fastest_possible_us": 12.0}, 0.5, wrong="y: 3 of 8 elements wrong")
    assert said == {"verdict": "wrong", "verdict_reason": "in the timed calls: y: 3 of 8 elements wrong"}


def test_the_hosts_clock_is_not_contradicted_by_cupti():
    assert verdict(GOOD | {"instrument": "host_clock", "gpu_us": 30.0}, 0.5)["verdict"] == "ok"


def test_cupti_does_not_contradict_what_an_instrument_leaves_open():
    row = GOOD | {"instrument": "cuda_events", "cupti_us": 7.0, "high_us": 14.0, "interval_pct": 40.0}
    assert verdict(row, 0.5)["verdict"] == "timer_limited"
    assert verdict(row | {"cupti_us": 5.0}, 0.5)["verdict"] == "contradicted"


@pytest.mark.parametrize(("cupti_us", "word"), [(110.0, "ok"), (116.0, "contradicted"), (93.0, "contradicted")])
def test_cupti_may_make_a_kernel_longer_and_never_shorter(cupti_us, word):
    assert verdict(GOOD | {"gpu_us": 100.0, "cupti_us": cupti_us}, 0.5)["verdict"] == word


@pytest.mark.parametrize(
    ("clock", "cupti_us", "word"),
    [
        (1850.0, 93.0, "ok"),
        (1850.0, 87.0, "contradicted"),
        (1850.0, 116.0, "contradicted"),
        (1000.0, 84.0, "contradicted"),  # whatever the clock was
    ],
)
def test_a_lower_clock_than_that_of_cuptis_calls_explains_its_share(clock, cupti_us, word):
    row = GOOD | {"gpu_us": 100.0, "cupti_us": cupti_us, "sm_clock_mhz": clock, "throttle": ""}
    assert verdict(row, 0.5)["verdict"] == word


def test_a_drift_is_said():
    drifts, wide = {"converged": False, "drift_pct": 4.0}, {"converged": False, "stat_pct": 0.9}
    said = [verdict(GOOD | figures, 0.5)["verdict_reason"] for figures in (drifts, wide, drifts | wide)]
    assert said[:2] == [
        "the time drifts by +4.0 % from its first tenth to its last",
        "the interval is +-0.9 % after 800 samples",
    ]
    assert said[2] == "; ".join(said[:2])


def test_a_cpu_row_needs_no_gpu_columns():
    row = {"wall_us": 1.0, "converged": True, "stat_pct": 0.1, "interval_pct": 0.1, "drift_pct": 0.0, "samples": 9}
    assert verdict(row | {"instrument": "perf_counter"}, 0.5)["verdict"] == "ok"
