"""The number of samples of a call, and paired rounds of several calls, for every instrument."""

import gc
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean

from ..records.case import Scalar
from ..records.replaced import setting
from . import clock as time
from . import ranks
from .call import Batches
from .instrument import Instrument
from .settings import TimingSettings
from .statistics import (
    BATCHES,
    FEWEST,
    LEVEL,
    Floor,
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

STEADY_PCT = 2.0  # warm-up ends when two of its rounds agree within this
LONGEST_WARMUP = 20  # times ``warmup_s``; after it, a call that is not steady is timed as it is
FIRST_LOOK = 1 / 3  # share of the time limit for the first series; the rest is for a second series


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

    Sampling ends after ``max_s`` seconds, but not before there are five samples.
    """
    started = ranks.current.now()
    times = list(instrument.early_us)
    cost_s = max(times) / 1e6 if times else _warm_up(instrument, settings.warmup_s)
    instrument.checks.begin(min(settings.samples, settings.max_s / cost_s) if cost_s else settings.samples, cost_s)
    sampling_began = ranks.current.now()
    ends = sampling_began + settings.max_s
    missing = settings.samples - len(times), FEWEST - len(times)
    times += _sample(instrument, missing[0], sampling_began + FIRST_LOOK * settings.max_s, cost_s, missing[1])
    count, took_s = len(times), ranks.current.now() - sampling_began
    if abs(summarise(times).drift) * 100 > settings.target_pct and sampling_began + 2 * took_s <= ends:
        further = _sample(instrument, count, ends, took_s / count)
        times = (times + further)[len(further) :]  # the drift was part of the warm-up
    summary = summarise(times)
    if summary.half_width * 100 > settings.target_pct:
        needed = len(times) * (summary.half_width * 100 / settings.target_pct) ** 2  # infinite if the time is 0
        times += _sample(instrument, needed, ends, took_s / count)
        summary = summarise(times)
    converged = max(summary.half_width, abs(summary.drift)) * 100 <= settings.target_pct
    return Taken(summary, times, sampling_began - started, converged)


def _warm_up(instrument: Instrument, least_s: float) -> float:
    """Sample in growing rounds until two agree. Return the seconds per sample, including overhead."""
    started = ranks.current.now()
    ends = started + LONGEST_WARMUP * least_s
    last, count, cost_s = 0.0, 1, 0.0
    while True:
        before = ranks.current.now()
        times = _sample(instrument, count, ends, cost_s, 1)
        now = ranks.current.now()
        cost_s, spent_s, median = (now - before) / len(times), now - started, sorted(times)[len(times) // 2]
        agree = last > 0 and abs(median - last) <= last * STEADY_PCT / 100
        if spent_s >= least_s and (agree or now >= ends):
            return cost_s
        last, count = median, max(1, min(2 * count, int(least_s / cost_s)))


def _sample(instrument: Instrument, count: float, ends: float, cost_s: float, least: int = 0) -> list[float]:
    """Take ``count`` samples in rounds of the instrument; fewer, but at least ``least``, if the clock reaches ``ends``.

    ``cost_s``: seconds per sample so far, 0 if unknown. A round that would end too late has fewer samples.
    """
    times: list[float] = []
    now = ranks.current.now()
    while len(times) < least or (len(times) < count and now < ends):
        affordable = (ends - now) / cost_s if cost_s else count
        size = max(1, least - len(times), int(min(count, affordable, instrument.round_size)))
        with collector_paused():
            batch = instrument.samples(min(size, instrument.round_size))
        times += batch
        before, now = now, ranks.current.now()
        cost_s = (now - before) / len(batch)
    return times


def collector_paused() -> AbstractContextManager[None]:
    """Turn garbage collection off inside this context, since it takes milliseconds."""
    return setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable(), False)


EACH = 10  # samples of each instrument in a round, or one if calls are slow
CHEAPER = 4  # a sample among ten costs at least a quarter of a single sample, which decides if ten are worth a try
TRIES = 3  # rounds; the fastest gives the time of a round, since other processes may delay rounds
PATIENCE = 2  # times the allowed time: limit for ten rounds of slow calls
LONGER = 4  # times the rounds: limit if the intervals are too wide, so that a disturbance does not fill a batch
SEED = 0


def paired_rounds(
    instruments: Sequence[Instrument], rounds: int, longest_s: float, target_pct: float, *, on_cpu: bool = False
) -> list[Batches] | None:
    """Sample ``instruments`` in paired rounds: each takes ten samples in each round, or one if calls are slow.

    The order of a round is random. With ``on_cpu``, every second round reverses the order of the previous round (AB,
    BA), and batch means are means of the faster half of the samples, since other processes only make a call slower.

    There are up to four times as many rounds if the interval of a ratio is wider than ``target_pct`` on a side, and
    fewer than ``rounds`` if they take more than ``longest_s`` for each instrument. The n-th batch means of all
    instruments are from the same rounds. None if ten rounds take more than twice ``longest_s`` for each instrument.
    """
    orders, allowed_s = _orders(len(instruments), mirrored=on_cpu), longest_s * len(instruments)
    counts = Counter[int]()

    def seconds(each: int, wanted_s: float) -> float:
        """Return the seconds of the fastest of a few rounds; one round if it takes at most ``wanted_s``."""
        spent: list[float] = []
        while not spent or (min(spent) > wanted_s and len(spent) < TRIES and sum(spent) + min(spent) <= allowed_s):
            started = ranks.current.now()
            _round(instruments, each, next(orders), counts)
            spent.append(ranks.current.now() - started)
        return min(spent)

    cheap_s = CHEAPER * allowed_s / EACH / BATCHES
    single_s = seconds(1, cheap_s)
    if single_s * BATCHES > PATIENCE * allowed_s:
        return None
    each = EACH if single_s <= cheap_s and seconds(EACH, allowed_s / BATCHES) * BATCHES <= allowed_s else 1
    samples: list[Round] = []
    for instrument in instruments:
        instrument.checks.begin(rounds * each, single_s / len(instruments) / each)
    started = ranks.current.now()

    def batches(count: float) -> list[list[float]]:
        """Sample until there are ``count`` rounds or the time is over. Return the batch means; [] if too few."""
        while len(samples) < count:
            if ranks.current.now() - started > (PATIENCE if len(samples) < BATCHES else 1) * allowed_s:
                break
            samples.append(_round(instruments, each, next(orders), counts))
        return _means(samples, range(len(instruments)), on_cpu=on_cpu) if len(samples) >= BATCHES else []

    if not (means := batches(rounds)):
        return None
    if (too_wide := 100 * widest(means) / target_pct) > 1:
        means = batches(rounds * min(LONGER, too_wide**2))
    return [_batches(instrument, means[index], counts[index]) for index, instrument in enumerate(instruments)]


def _batches(instrument: Instrument, means_us: list[float], calls: int) -> Batches:
    """Return the batches of an instrument, without means if its outputs were wrong."""
    wrong = instrument.judge_outputs()
    return Batches(instrument.name, [] if wrong else means_us, calls, wrong)


FIRST_LOOK_ROUNDS = 20  # rounds of a race, so that a batch has two samples


def race(
    instruments: Sequence[Instrument], rounds: int, longest_s: float, target_pct: float, *, on_cpu: bool = False
) -> list[Batches] | None:
    """Find the fastest of ``instruments`` in paired rounds of one sample each.

    After 20, 40, 80, ... rounds, instruments that are shown to be slower than the fastest drop out; their batch means
    are empty. The others keep their samples. The race ends when one instrument is left, when the ratios to the fastest
    are known to ``target_pct``, or at the limits of ``paired_rounds``. The true fastest drops out with a probability of
    at most ``LEVEL`` in all looks together. None if ten rounds take more than twice ``longest_s`` for each instrument.
    """
    orders, allowed_s = _orders(len(instruments), mirrored=on_cpu), longest_s * len(instruments)
    most = LONGER * EACH * rounds
    looks = math.ceil(math.log2(most / FIRST_LOOK_ROUNDS)) + 1
    means = {place: list[float]() for place in range(len(instruments))}  # of the instruments in the race
    samples, counts = list[Round](), Counter[int]()
    for instrument in instruments:
        instrument.checks.begin(FIRST_LOOK_ROUNDS * 4, 0.0)
    started, late = ranks.current.now(), False
    for look in range(looks):
        while len(samples) < min(most, FIRST_LOOK_ROUNDS * 2**look) and not late:
            samples.append(_round(instruments, 1, [place for place in next(orders) if place in means], counts))
            late = ranks.current.now() - started > (PATIENCE if len(samples) < BATCHES else 1) * allowed_s
        if len(samples) < BATCHES:
            return None
        means = dict(zip(means, _means(samples, list(means), on_cpu=on_cpu), strict=True))
        if min(map(min, means.values())) <= 0:  # there is no ratio to a call that does nothing
            break
        best = min(means, key=lambda place: fmean(means[place]))
        over_best = {}
        for place in means:
            names = instruments[place].name, instruments[best].name
            over_best[place] = paired(means[place], means[best], pair_floors(*names), shared_us(*names))
        for place in beaten(over_best, LEVEL / looks):
            del means[place], over_best[place]
        if late or 100 * max(ratio.sampling for ratio in over_best.values()) <= target_pct:
            break
    return [_batches(instrument, means.get(place, []), counts[place]) for place, instrument in enumerate(instruments)]


Round = Mapping[int, list[float]]  # index of an instrument → its samples


def _means(samples: Sequence[Round], places: Iterable[int], *, on_cpu: bool) -> list[list[float]]:
    """Return ten batch means of the instruments at ``places``, from the rounds ``samples``."""
    mean, parts = faster_half_mean if on_cpu else trimmed_mean, consecutive(samples, BATCHES)
    return [[mean([us for sampled in part for us in sampled[place]]) for part in parts] for place in places]


def _orders(count: int, *, mirrored: bool) -> Iterator[list[int]]:
    """Yield the order of each round."""
    chance = random.Random(SEED)
    while True:
        order = chance.sample(range(count), count)
        yield order
        if mirrored:
            yield order[::-1]


def _round(instruments: Sequence[Instrument], each: int, order: Sequence[int], counts: Counter[int]) -> Round:
    """Take ``each`` samples of the instruments at the places ``order`` in turn, and count them."""
    with collector_paused():
        sampled = {place: instruments[place].samples(each) for place in order}
    counts.update({place: len(samples) for place, samples in sampled.items()})
    return sampled


LONG_US = 100.0  # a series of longer calls may reach the GPU's power limit


def rest(last_us: float, busy_s: float, again: Callable[[], object]) -> None:
    """After calls longer than ``LONG_US``, sleep for ``busy_s`` and call ``again`` once: the first call is slow."""
    if last_us > LONG_US:
        time.sleep(busy_s)
        again()
