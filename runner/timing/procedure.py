"""How many samples to take of a call, paired rounds of several calls, and the verdict, for every instrument."""

from __future__ import annotations

import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from runner.experiment.case import Scalar
from runner.experiment.results import figure, interval
from runner.timing import Batches, TimingSettings
from runner.timing import clock as time
from runner.timing.statistics import (
    BATCHES,
    FEWEST,
    LEVEL,
    Floor,
    Ratio,
    Summary,
    beaten,
    consecutive,
    faster_half_mean,
    pair_floors,
    paired,
    shared_us,
    summarise,
    trimmed_mean,
    widest,
)

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
    """Warm up and sample; sample again if the series drifts, and extend it once if its interval is too wide.

    Sampling ends after ``max_s`` seconds, however slow the call becomes, but not before there are five samples.
    """
    started = time.perf_counter()
    times = list(instrument.early_us)
    cost_s = max(times) / 1e6 if times else _warm_up(instrument, settings.warmup_s)
    began = time.perf_counter()
    ends = began + settings.max_s
    left = settings.samples - len(times), FEWEST - len(times)
    times += _sample(instrument, left[0], began + FIRST_LOOK * settings.max_s, cost_s, left[1])
    count, took_s = len(times), time.perf_counter() - began
    if abs(summarise(times).drift) * 100 > settings.target_pct and began + 2 * took_s <= ends:
        again = _sample(instrument, count, ends, took_s / count)
        times = (times + again)[len(again) :]  # the drift was part of the warm-up
    summary = summarise(times)
    if summary.half_width * 100 > settings.target_pct:
        wanted = len(times) * (summary.half_width * 100 / settings.target_pct) ** 2  # infinite if the time is 0
        times += _sample(instrument, wanted, ends, took_s / count)
        summary = summarise(times)
    converged = max(summary.half_width, abs(summary.drift)) * 100 <= settings.target_pct
    return Taken(summary, times, began - started, converged)


def _warm_up(instrument: Instrument, least_s: float) -> float:
    """Sample in growing rounds until two agree. Return the seconds that one sample costs, overhead included."""
    started = time.perf_counter()
    ends = started + LONGEST_WARMUP * least_s
    last, count, cost_s = 0.0, 1, 0.0
    while True:
        before = time.perf_counter()
        times = _sample(instrument, count, ends, cost_s, 1)
        now = time.perf_counter()
        cost_s, spent_s, median = (now - before) / len(times), now - started, sorted(times)[len(times) // 2]
        agree = last > 0 and abs(median - last) <= last * STEADY_PCT / 100
        if spent_s >= least_s and (agree or now >= ends):
            return cost_s
        last, count = median, max(1, min(2 * count, int(least_s / cost_s)))


def _sample(instrument: Instrument, count: float, ends: float, cost_s: float, least: int = 0) -> list[float]:
    """Take ``count`` samples in rounds of the instrument, fewer if the clock reaches ``ends``, but ``least`` of them.

    ``cost_s``: seconds that a sample has cost so far, 0 if unknown. A round that would end too late has fewer samples.
    """
    times: list[float] = []
    now = time.perf_counter()
    while len(times) < least or (len(times) < count and now < ends):
        affordable = (ends - now) / cost_s if cost_s else count
        size = max(1, least - len(times), int(min(count, affordable, instrument.round_size)))
        with collector_paused():
            taken = instrument.samples(min(size, instrument.round_size))
        times += taken
        before, now = now, time.perf_counter()
        cost_s = (now - before) / len(taken)
    return times


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage inside, since that takes milliseconds; what the calls leave is collected afterwards."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


EACH = 10  # samples of each instrument in a round, or one if calls are slow
CHEAPER = 4  # a sample among ten costs a quarter of a single one at best: else rounds of ten need not be tried
TRIES = 3  # rounds of which the fastest says what a round takes, since other processes may delay one
PATIENCE = 2  # times the allowed time that ten rounds of slow calls may take
LONGER = 4  # times as many rounds at most where the intervals are too wide: a disturbance then fills no batch
SEED = 0


def side_by_side(
    instruments: Sequence[Instrument], rounds: int, longest_s: float, target_pct: float, *, on_cpu: bool = False
) -> list[Batches] | None:
    """Sample ``instruments`` in paired rounds: in each round every one takes ten samples, or one if calls are slow.

    The order of a round is random. ``on_cpu``, every second round reverses the order of the round before (AB, BA), and
    a batch mean is that of the faster half of its samples, since other processes only make a call slower.

    If the interval of a ratio is then wider than ``target_pct`` on a side, there are up to four times as many rounds.
    There are fewer than ``rounds`` if they take more than ``longest_s`` for each instrument. The n-th batch means of
    all are taken at the same time. None if ten rounds take more than twice ``longest_s`` for each instrument.
    """
    orders, allowed_s = _orders(len(instruments), mirrored=on_cpu), longest_s * len(instruments)
    counts = Counter[int]()

    def seconds(each: int, wanted_s: float) -> float:
        """Return the seconds of the fastest of a few rounds; one is enough if it takes at most ``wanted_s``."""
        spent: list[float] = []
        while not spent or (min(spent) > wanted_s and len(spent) < TRIES and sum(spent) + min(spent) <= allowed_s):
            started = time.perf_counter()
            _round(instruments, each, next(orders), counts)
            spent.append(time.perf_counter() - started)
        return min(spent)

    cheap_s = CHEAPER * allowed_s / EACH / BATCHES
    single_s = seconds(1, cheap_s)
    if single_s * BATCHES > PATIENCE * allowed_s:
        return None
    tens = single_s <= cheap_s and seconds(EACH, allowed_s / BATCHES) * BATCHES <= allowed_s
    taken: list[Round] = []
    started = time.perf_counter()

    def batches(wanted: float) -> list[list[float]]:
        """Go on until there are ``wanted`` rounds or no time is left. Return the means of each; none of too few."""
        while len(taken) < wanted:
            if time.perf_counter() - started > (PATIENCE if len(taken) < BATCHES else 1) * allowed_s:
                break
            taken.append(_round(instruments, EACH if tens else 1, next(orders), counts))
        return _means(taken, range(len(instruments)), on_cpu=on_cpu) if len(taken) >= BATCHES else []

    if not (means := batches(rounds)):
        return None
    if (too_wide := 100 * widest(means) / target_pct) > 1:
        means = batches(rounds * min(LONGER, too_wide**2))
    return [(one.name, means[index], counts[index]) for index, one in enumerate(instruments)]


FIRST_LOOK_ROUNDS = 20  # of a race: each batch has two samples


def race(
    instruments: Sequence[Instrument], rounds: int, longest_s: float, target_pct: float, *, on_cpu: bool = False
) -> list[Batches] | None:
    """Find the fastest of ``instruments`` in paired rounds of one sample each.

    After 20, 40, 80, ... rounds, those shown to be slower than the fastest drop out, and their batch means are empty.
    The others keep their samples. The race ends when one is left, or when the ratios of the others to the fastest are
    known to ``target_pct``; at the latest after as many samples or seconds as ``side_by_side`` takes at most. The true
    fastest drops out with a probability of at most ``LEVEL``, all looks together. None if ten rounds take more than
    twice ``longest_s`` for each instrument.
    """
    orders, allowed_s = _orders(len(instruments), mirrored=on_cpu), longest_s * len(instruments)
    most = LONGER * EACH * rounds
    looks = math.ceil(math.log2(most / FIRST_LOOK_ROUNDS)) + 1
    means = {place: list[float]() for place in range(len(instruments))}  # of those that are left
    taken, counts = list[Round](), Counter[int]()
    started, late = time.perf_counter(), False
    for look in range(looks):
        while len(taken) < min(most, FIRST_LOOK_ROUNDS * 2**look) and not late:
            taken.append(_round(instruments, 1, [place for place in next(orders) if place in means], counts))
            late = time.perf_counter() - started > (PATIENCE if len(taken) < BATCHES else 1) * allowed_s
        if len(taken) < BATCHES:
            return None
        means = dict(zip(means, _means(taken, list(means), on_cpu=on_cpu), strict=True))
        if min(map(min, means.values())) <= 0:  # a call that does nothing has no ratio
            break
        best = min(means, key=lambda place: fmean(means[place]))
        over_best = {place: _ratio(instruments, means, place, best) for place in means}
        for place in beaten(over_best, LEVEL / looks):
            del means[place], over_best[place]
        if late or 100 * max(ratio.sampling for ratio in over_best.values()) <= target_pct:
            break
    return [(one.name, means.get(place, []), counts[place]) for place, one in enumerate(instruments)]


def _ratio(instruments: Sequence[Instrument], means: Mapping[int, Sequence[float]], first: int, second: int) -> Ratio:
    names = instruments[first].name, instruments[second].name
    return paired(means[first], means[second], pair_floors(*names), shared_us(*names))


Round = Mapping[int, list[float]]  # samples by the places of their instruments


def _means(taken: Sequence[Round], places: Iterable[int], *, on_cpu: bool) -> list[list[float]]:
    """Return ten batch means of each of ``places``, from the rounds ``taken``."""
    mean, parts = faster_half_mean if on_cpu else trimmed_mean, consecutive(taken, BATCHES)
    return [[mean([us for one in part for us in one[place]]) for part in parts] for place in places]


def _orders(count: int, *, mirrored: bool) -> Iterator[list[int]]:
    """Yield the order of each round."""
    chance = random.Random(SEED)
    while True:
        order = chance.sample(range(count), count)
        yield order
        if mirrored:
            yield order[::-1]


def _round(instruments: Sequence[Instrument], each: int, order: Sequence[int], counts: Counter[int]) -> Round:
    """Take ``each`` samples of the instruments at the places ``order``, one after the other, and count them."""
    with collector_paused():
        taken = {place: instruments[place].samples(each) for place in order}
    counts.update({place: len(samples) for place, samples in taken.items()})
    return taken


LONG_US = 100.0  # a series of longer calls may reach the GPU's power limit


def rest(last_us: float, busy_s: float, again: Callable[[], object]) -> None:
    """After calls longer than ``LONG_US``, sleep for ``busy_s`` and call ``again`` once: the first call is slow."""
    if last_us > LONG_US:
        time.sleep(busy_s)
        again()


SLOWED = 0.98  # share of the unloaded clock below which a limit of power or temperature may have acted
DISAGREE_US, DISAGREE_SHARE = 1.0, 0.05  # allowed between the instrument and CUPTI, for a call of a single kernel
MOST_SLOWED_SHARE = 0.1  # a lower clock than in CUPTI's calls allows its share more, but no more than this
WATCHED_SHARE = 0.1  # allowed where CUPTI's time is longer: recording makes a kernel up to 7.7 % longer
CONTENDED_PCT = 2.0  # of the time without a core: 0.3 on a quiet machine, 37 beside one busy process on two cores
MOST_DRIFT_US = 0.2  # half of the drift that another process's context was seen to cause
LAUNCH_SHARE, LAUNCH_US = 1.2, 1.0  # a call is launch-bound if calls back to back take longer than its GPU time by both

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
    fastest_us, cupti_us = map(columns.get, ("fastest_possible_us", "cupti_us"))
    clock, unloaded = map(columns.get, ("sm_clock_mhz", "unloaded_clock_mhz"))

    if kernels == 0:
        yield "impossible", "the call ran no kernel, copy or fill: its outputs were computed before"
    if fastest_us is not None and time_us < fastest_us:
        least = figure(fastest_us, "us", 3)
        yield "impossible", f"this GPU cannot do it in less than {least}, by the rates measured on it"

    if cupti_us is not None and kernels == 1 and instrument != "host_clock":
        uncertainty_us = columns.get("high_us", time_us) - time_us  # up to 4.4 us for events
        # CUPTI's calls come one by one, at the unloaded clock. Those of the instrument can be at a lower one.
        slowed = max(0.0, 1 - clock / unloaded) if clock and unloaded else 0.0
        share = WATCHED_SHARE if cupti_us > time_us else DISAGREE_SHARE + min(slowed, MOST_SLOWED_SHARE)
        if abs(cupti_us - time_us) > max(DISAGREE_US, share * time_us, uncertainty_us):
            other = f"{instrument} {figure(time_us, 'us', 3)}"
            yield "contradicted", f"CUPTI measured {figure(cupti_us, 'us', 3)} and {other}"

    if (drift_us := columns.get("timer_drift_us", 0.0)) <= -MOST_DRIFT_US:
        change = f"the empty kernel's time dropped by {figure(-drift_us, 'us', 2)}"
        yield "contended", f"{change}: another process started or stopped using this GPU"
    if drift_us >= MOST_DRIFT_US and clock and unloaded and clock >= SLOWED * unloaded:
        change = f"the empty kernel's time rose by {figure(drift_us, 'us', 2)}"
        yield "contended", f"{change} since the timer offset was measured: another process was using this GPU then"
    if (waited_pct := columns.get("cpu_wait_pct", 0.0)) > CONTENDED_PCT:
        yield "contended", f"its threads waited {waited_pct:.0f} % of the time for other processes"

    # The driver must report a limit too, if it can be asked: tensor cores lower the clock without any (256^3 in
    # bfloat16: 1848 of 1981 MHz).
    limit = columns.get("throttle", "power most likely")
    if clock and unloaded and clock < SLOWED * unloaded and limit:
        yield "power_capped", f"the GPU met a limit ({limit}): its clock was {clock:.0f} of {unloaded:.0f} MHz"

    stat_pct, interval_pct = columns["stat_pct"], columns["interval_pct"]  # None if the time is 0
    if not columns["converged"] and stat_pct is not None:
        drift_pct, spread = (
            columns["drift_pct"],
            f"the interval is {interval(stat_pct, '+-')} after {columns['samples']} samples",
        )
        drifts = abs(drift_pct) > target_pct
        yield "not_converged", f"the time drifts by {drift_pct:+.1f} %; {spread}" if drifts else spread

    if interval_pct is None:
        yield "timer_limited", f"{instrument} cannot distinguish the call from an empty one"
    elif (best_pct := math.sqrt(max(0.0, interval_pct**2 - (stat_pct or 0.0) ** 2))) > target_pct:
        # The rest of the interval remains however many samples are taken.
        yield "timer_limited", f"{instrument} measures so short a call to {interval(best_pct, '+-')} at best"

    if launch_bound(columns):
        every, busy = (figure(columns[name], "us") for name in ("pipelined_us", _warm(columns)))
        yield "launch_bound", f"back to back, a call takes {every}, of which the GPU works {busy}: launching limits it"


def launch_bound(columns: Mapping[str, Any]) -> bool:
    """Return whether calls back to back take longer than the GPU works, since launching limits them."""
    pipelined_us, warm_us = columns.get("pipelined_us"), columns.get(_warm(columns))
    if pipelined_us is None or warm_us is None:
        return False
    return bool(pipelined_us > max(LAUNCH_SHARE * warm_us, warm_us + LAUNCH_US))


def _warm(columns: Mapping[str, Any]) -> str:
    """Return the column of the time to compare with calls back to back, which leave the cache warm."""
    return "gpu_warm_us" if "gpu_warm_us" in columns else "gpu_us"
