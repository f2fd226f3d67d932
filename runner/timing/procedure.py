"""How many samples to take of a call, paired rounds of several calls, and the verdict, for every instrument."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.experiment.case import Scalar
from runner.timing import TimingSettings
from runner.timing.statistics import BATCHES, FEWEST, Floor, Summary, consecutive, summarise, trimmed_mean

if TYPE_CHECKING:
    from runner.timing.call import Instrument

STEADY_PCT = 2.0  # warm-up ends when two rounds of it agree this well
LONGEST_WARMUP = 20  # times ``warmup_s``: a call that does not settle until then is timed as it is
FIRST_LOOK = 1 / 3  # share of the time allowed for the first series; the rest is for the one time that more is needed


@dataclass(frozen=True)
class Taken:
    """A series of samples and its summary."""

    summary: Summary
    samples_us: list[float]
    warmup_s: float
    converged: bool

    def columns(self, time_column: str, floor: Floor) -> dict[str, Scalar]:
        """Return the columns of a row. The interval combines sampling and ``floor``, the instrument's error.

        The timer offset is subtracted from each sample, so the estimate of an empty call may be below 0. Its time is
        then 0, and its relative widths are None.
        """
        summary = self.summary
        half_us = floor.widen(summary.high - summary.estimate, summary.estimate)
        positive = summary.estimate > 0
        return {
            time_column: max(0.0, summary.estimate),
            "low_us": max(0.0, summary.estimate - half_us),
            "high_us": max(0.0, summary.estimate + half_us),
            "stat_pct": 100 * summary.half_width if positive else None,
            "interval_pct": 100 * half_us / summary.estimate if positive else None,
            "median_us": summary.median,
            "q1_us": summary.q1,
            "q3_us": summary.q3,
            "min_us": summary.minimum,
            "samples": summary.count,
            "converged": self.converged,
            "drift_pct": 100 * summary.drift,
            "warmup_s": self.warmup_s,
        }


def take(instrument: Instrument, settings: TimingSettings) -> Taken:
    """Warm up and sample; sample again if the series drifts, and extend it once if its interval is too wide."""
    started = time.perf_counter()
    cost_s = _warm_up(instrument, settings.warmup_s)
    affordable = max(FEWEST, int(settings.max_s / cost_s))
    warmup_s = time.perf_counter() - started
    count = max(FEWEST, min(settings.samples, int(affordable * FIRST_LOOK)))
    times = instrument.samples(count)
    if abs(summarise(times).drift) * 100 > settings.target_pct and affordable >= 3 * count:
        times, affordable = instrument.samples(count), affordable - count  # the drift was part of the warm-up
    summary, left = summarise(times), affordable - len(times)
    if summary.half_width * 100 > settings.target_pct and left >= len(times):
        wanted = len(times) * (summary.half_width * 100 / settings.target_pct) ** 2  # infinite if the time is 0
        times = times + instrument.samples(max(len(times), int(min(wanted, left))))
        summary = summarise(times)
    converged = max(summary.half_width, abs(summary.drift)) * 100 <= settings.target_pct
    return Taken(summary, times, warmup_s, converged)


def _warm_up(instrument: Instrument, least_s: float) -> float:
    """Sample in growing rounds until two agree. Return the seconds that one sample costs, overhead included."""
    started = time.perf_counter()
    last, count = 0.0, 1
    while True:
        before = time.perf_counter()
        times = instrument.samples(count)
        now = time.perf_counter()
        cost_s, spent_s, median = (now - before) / len(times), now - started, sorted(times)[len(times) // 2]
        agree = last > 0 and abs(median - last) <= last * STEADY_PCT / 100
        if spent_s >= least_s and (agree or spent_s >= LONGEST_WARMUP * least_s):
            return cost_s
        last, count = median, max(1, min(2 * count, int(least_s / cost_s)))


EACH = 10  # samples of each instrument in a round, or one if calls are slow
CHEAPER = 4  # a sample among ten costs a quarter of a single one at best: else rounds of ten need not be tried
SEED = 0


def side_by_side(
    instruments: Sequence[Instrument], rounds: int, longest_s: float
) -> list[tuple[str, list[float]]] | None:
    """Sample ``instruments`` in paired rounds: in each round every one takes ten samples, or one, in shuffled order.

    Return the name and ten batch means in us of each; the n-th means are taken at the same time. There are fewer than
    ``rounds`` if they would take more than ``longest_s`` for each instrument, and None if there are fewer than ten.
    """
    chance, allowed_s = random.Random(SEED), longest_s * len(instruments)

    def seconds(each: int) -> float:
        started = time.perf_counter()
        _round(instruments, each, chance)
        return time.perf_counter() - started

    if seconds(1) > allowed_s:  # the first round may load something, but that takes less
        return None
    single_s = seconds(1)
    if single_s * BATCHES > allowed_s:
        return None
    for each in (EACH, 1) if single_s * BATCHES * EACH <= CHEAPER * allowed_s else (1,):
        affordable = min(rounds, int(allowed_s / seconds(each)))
        if affordable >= BATCHES:
            break
    else:
        return None
    batches: list[list[float]] = [[] for _ in instruments]
    for part in consecutive(range(affordable), BATCHES):
        taken = [_round(instruments, each, chance) for _ in part]
        for index, means in enumerate(batches):
            means.append(trimmed_mean([time_us for one in taken for time_us in one[index]]))
    return [(instrument.name, means) for instrument, means in zip(instruments, batches, strict=True)]


def _round(instruments: Sequence[Instrument], each: int, chance: random.Random) -> list[list[float]]:
    """Take ``each`` samples of every instrument in shuffled order; return them in the order of ``instruments``."""
    order = chance.sample(range(len(instruments)), len(instruments))
    taken = {index: instruments[index].samples(each) for index in order}
    return [taken[index] for index in range(len(instruments))]


LONG_US = 100.0  # a series of longer calls may reach the GPU's power limit


def rest(last_us: float, busy_s: float, again: Callable[[], object]) -> None:
    """After calls longer than ``LONG_US``, sleep for ``busy_s`` and call ``again`` once: the first call is slow."""
    if last_us > LONG_US:
        time.sleep(busy_s)
        again()


SLOWED = 0.98  # share of the unloaded clock below which a limit of power or temperature may have acted
DISAGREE_US, DISAGREE_SHARE = 1.0, 0.05  # allowed between the instrument and CUPTI, for a call of a single kernel
WATCHED_SHARE = 0.1  # allowed where CUPTI's time is longer: recording makes a kernel up to 7.7 % longer
CONTENDED_PCT = 2.0  # of the time without a core: 0.3 on a quiet machine, 37 beside one busy process on two cores
MOST_DRIFT_US = 0.2  # half of the drift that another process's context was seen to cause
BOUND_BY_LAUNCH = 2.0  # caller latency over GPU time

# The gravest first.
UNTRUE = ("impossible", "contradicted")  # an implementation with such a time gets no star
UNCERTAIN = ("contended", "power_capped", "not_converged", "timer_limited", "launch_bound")
GRAVITY = ("wrong", "debug", *UNTRUE, "fallback", *UNCERTAIN, "ok")  # the worker adds "debug" and "fallback"


def verdict(columns: Mapping[str, Scalar], target_pct: float, wrong: str = "") -> dict[str, Scalar]:
    """Return ``verdict`` and ``verdict_reason``: the gravest doubt about the time in ``columns``, or "ok".

    ``wrong`` says what is wrong with the outputs of the timed calls; it is empty if they are right.
    """
    if wrong:
        return {"verdict": "wrong", "verdict_reason": f"in the timed calls: {wrong}"}
    word, reason = next(_doubts(columns, target_pct), ("ok", ""))
    return {"verdict": word, "verdict_reason": reason}


def _doubts(columns: Mapping[str, Any], target_pct: float) -> Iterator[tuple[str, str]]:
    """Yield each doubt and its reason, the gravest first. Columns of other devices and instruments are absent."""
    instrument, kernels = columns["instrument"], columns.get("n_kernels")
    time_us: Any = columns.get("gpu_us")  # None on a CPU
    least_us, cupti_us, latency_us = map(columns.get, ("fastest_possible_us", "cupti_us", "latency_us"))

    if kernels == 0:
        yield "impossible", "the call ran no kernel, copy or fill: its outputs were computed before"
    if least_us is not None and time_us < least_us:
        yield "impossible", f"this GPU cannot do it in less than {least_us:.3g} us, by the rates measured on it"

    if cupti_us is not None and kernels == 1 and instrument != "host_clock":
        uncertainty_us = columns.get("high_us", time_us) - time_us  # up to 4.4 us for events
        share = WATCHED_SHARE if cupti_us > time_us else DISAGREE_SHARE
        if abs(cupti_us - time_us) > max(DISAGREE_US, share * time_us, uncertainty_us):
            yield "contradicted", f"CUPTI measured {cupti_us:.3g} us and {instrument} {time_us:.3g} us"

    if (drift_us := columns.get("timer_drift_us", 0.0)) <= -MOST_DRIFT_US:
        change = f"the empty kernel's time dropped by {-drift_us:.2g} us"
        yield "contended", f"{change}: another process started or stopped using this GPU"
    if (waited_pct := columns.get("cpu_wait_pct", 0.0)) > CONTENDED_PCT:
        yield "contended", f"its threads waited {waited_pct:.0f} % of the time for other processes"

    # The driver must report a limit too, if it can be asked: tensor cores lower the clock without any (256^3 in
    # bfloat16: 1848 of 1981 MHz).
    clock, unloaded = columns.get("sm_clock_mhz"), columns.get("unloaded_clock_mhz")
    limit = columns.get("throttle", "power most likely")
    if clock and unloaded and clock < SLOWED * unloaded and limit:
        yield "power_capped", f"the GPU met a limit ({limit}): its clock was {clock:.0f} of {unloaded:.0f} MHz"

    stat_pct, interval_pct = columns["stat_pct"], columns["interval_pct"]  # None if the time is 0
    if not columns["converged"] and stat_pct is not None:
        drift_pct, spread = (
            columns["drift_pct"],
            f"the interval is +-{stat_pct:.1f} % after {columns['samples']} samples",
        )
        drifts = abs(drift_pct) > target_pct
        yield "not_converged", f"the time drifts by {drift_pct:+.1f} %; {spread}" if drifts else spread

    if interval_pct is None:
        yield "timer_limited", f"{instrument} cannot distinguish the call from an empty one"
    elif (best_pct := math.sqrt(max(0.0, interval_pct**2 - (stat_pct or 0.0) ** 2))) > target_pct:
        # The rest of the interval remains however many samples are taken.
        yield "timer_limited", f"{instrument} measures so short a call to +-{best_pct:.1f} % at best"

    if time_us and latency_us and (kernels or 1) > 1 and latency_us > BOUND_BY_LAUNCH * time_us:
        wait = f"a caller waits {latency_us:.4g} us"
        yield "launch_bound", f"{wait}: launching takes longer than the {time_us:.4g} us that the GPU works"
