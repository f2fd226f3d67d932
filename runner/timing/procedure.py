"""Warm up until steady, sample, look, and sample once more if the interval is too wide. The same for every clock."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runner.experiment.case import Scalar
from runner.timing.statistics import BATCHES, FEWEST, Floor, Summary, consecutive, summarise, trimmed_mean

STEADY_PCT = 2.0  # warm-up ends when two rounds of it agree this well
LONGEST_WARMUP = 20  # times the least warm-up, after which a call that never settles is timed as it is
FIRST_LOOK = 1 / 3  # of the time allowed: what is left is for the one time that more is needed


class Instrument(Protocol):
    """Something that times single calls."""

    name: str  # as the row has it

    def samples(self, count: int) -> list[float]:
        """About ``count`` times of one call, in microseconds, in the order they were taken."""

    def outputs(self) -> Iterator[Sequence[object]]:
        """What calls give that are made as the timed ones are."""


class Settings(Protocol):
    """How long to go on. ``runner.timing.call.TimingSettings`` is one."""

    @property
    def samples(self) -> int:
        """To take before the first look."""

    @property
    def warmup_s(self) -> float:
        """Least time of calls before the first sample."""

    @property
    def max_s(self) -> float:
        """Longest time of sampling, except that five samples are taken of however long a call."""

    @property
    def target_pct(self) -> float:
        """Half-width of the 95 % interval that is narrow enough, in percent."""


@dataclass(frozen=True)
class Taken:
    """A series, and what it took."""

    summary: Summary
    samples_us: list[float]
    warmup_s: float
    converged: bool

    def columns(self, time_column: str, floor: Floor) -> dict[str, Scalar]:
        """As a row has them; the interval holds what sampling shows and what the instrument's ``floor`` adds.

        What an instrument reads where nothing happens is taken off each sample, so that a call that does nothing may
        come out below 0: its time is 0 then, and no width is a share of that.
        """
        summary = self.summary
        half_us = floor.widen(summary.high - summary.estimate, summary.estimate)
        some = summary.estimate > 0
        return {
            time_column: max(0.0, summary.estimate),
            "low_us": max(0.0, summary.estimate - half_us),
            "high_us": max(0.0, summary.estimate + half_us),
            "stat_pct": 100 * summary.half_width if some else None,
            "interval_pct": 100 * half_us / summary.estimate if some else None,
            "median_us": summary.median,
            "q1_us": summary.q1,
            "q3_us": summary.q3,
            "min_us": summary.minimum,
            "samples": summary.count,
            "converged": self.converged,
            "drift_pct": 100 * summary.drift,
            "warmup_s": self.warmup_s,
        }


def take(instrument: Instrument, settings: Settings) -> Taken:
    """Samples of ``instrument``; anew if they drift, and then once more if their interval is wider than asked."""
    started = time.perf_counter()
    cost_s = _warm_up(instrument, settings.warmup_s)
    affordable = max(FEWEST, int(settings.max_s / cost_s))
    warmup_s = time.perf_counter() - started
    count = max(FEWEST, min(settings.samples, int(affordable * FIRST_LOOK)))
    times = instrument.samples(count)
    if _drifts(summarise(times), settings) and affordable >= 3 * count:
        times, affordable = instrument.samples(count), affordable - count  # what drifted was warm-up
    summary, left = summarise(times), affordable - len(times)
    if summary.half_width * 100 > settings.target_pct and left >= len(times):
        wanted = len(times) * (summary.half_width * 100 / settings.target_pct) ** 2  # infinite of a time of 0
        times = times + instrument.samples(max(len(times), int(min(wanted, left))))
        summary = summarise(times)
    converged = summary.half_width * 100 <= settings.target_pct and not _drifts(summary, settings)
    return Taken(summary, times, warmup_s, converged)


def _drifts(summary: Summary, settings: Settings) -> bool:
    return abs(summary.drift) * 100 > settings.target_pct


def _warm_up(instrument: Instrument, least_s: float) -> float:
    """Sample in growing rounds until two agree; gives the seconds that a sample costs, all told."""
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


EACH = 10  # samples of each in a round, or one if they are slow
LESS = 4  # times less, at most, that a sample among ten may cost than a single one: then ten are tried
SEED = 0


def side_by_side(
    instruments: Sequence[Instrument], rounds: int, longest_s: float
) -> list[tuple[str, list[float]]] | None:
    """Return the name and ten batch means in us of each instrument; the n-th means are taken at the same time.

    There are ``rounds`` rounds, or fewer if they would take longer than ``longest_s`` an instrument; in each, all
    instruments take ten samples, or one, in shuffled order. None if there is no time for a round a batch.
    """
    chance, allowed_s = random.Random(SEED), longest_s * len(instruments)
    if _seconds(instruments, 1, chance) > allowed_s:  # the first may load something, but not for so long
        return None
    single_s = _seconds(instruments, 1, chance)
    if single_s * BATCHES > allowed_s:
        return None
    for each in (EACH, 1) if single_s * BATCHES * EACH <= LESS * allowed_s else (1,):
        affordable = min(rounds, int(allowed_s / _seconds(instruments, each, chance)))
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


def _seconds(instruments: Sequence[Instrument], each: int, chance: random.Random) -> float:
    """What a round takes."""
    started = time.perf_counter()
    _round(instruments, each, chance)
    return time.perf_counter() - started


def _round(instruments: Sequence[Instrument], each: int, chance: random.Random) -> list[list[float]]:
    """``each`` samples of each, by its place in ``instruments``."""
    order = chance.sample(range(len(instruments)), len(instruments))
    taken = {index: instruments[index].samples(each) for index in order}
    return [taken[index] for index in range(len(instruments))]


LONG_US = 100.0  # calls of which a series may meet that limit


def rest(last_us: float, busy_s: float, again: Callable[[], object]) -> None:
    """As long as it was busy, if calls take ``last_us`` that is long; and once ``again``: after a pause it is slow."""
    if last_us > LONG_US:
        time.sleep(busy_s)
        again()


SLOWED = 0.98  # share of the unloaded clock below which a limit of power or heat may have acted
DISAGREE_US, DISAGREE_SHARE = 1.0, 0.05  # between the instrument and CUPTI, for a call of a single kernel
WATCHED_SHARE = 0.1  # and where CUPTI says more: a kernel takes up to 7.7 % longer while CUPTI records it
CONTENDED_PCT = 2.0  # of the time without a core: 0.3 on a quiet machine, 37 beside one busy process on two cores
MOST_DRIFT_US = 0.2  # half of what another process's context has been seen to do
BOUND_BY_LAUNCH = 2.0  # times the GPU's own time that a caller waits


def verdict(columns: Mapping[str, Scalar], target_pct: float, wrong: str = "") -> dict[str, Scalar]:
    """``verdict`` and ``verdict_reason``: the first doubt there is, in order of weight.

    ``wrong`` is what is wrong with the outputs of the timed calls themselves.
    """
    if wrong:
        return {"verdict": "wrong", "verdict_reason": f"in the timed calls: {wrong}"}
    for word, doubt in DOUBTS.items():
        if reason := doubt(columns, target_pct):
            return {"verdict": word, "verdict_reason": reason}
    return {"verdict": "ok", "verdict_reason": ""}


def _power_capped(columns: Mapping[str, Any], target_pct: float) -> str:
    """By clock and driver: tensor cores alone lower the clock, at no limit (256^3 in bfloat16: to 1848 of 1981 MHz)."""
    clock, unloaded = columns.get("sm_clock_mhz"), columns.get("unloaded_clock_mhz")
    limit = columns.get("throttle", "power most likely")  # where the driver cannot be asked
    if not clock or not unloaded or clock >= SLOWED * unloaded or not limit:
        return ""
    return f"the GPU met a limit ({limit}): its clock was {clock:.0f} of {unloaded:.0f} MHz"


def _not_converged(columns: Mapping[str, Any], target_pct: float) -> str:
    if columns["converged"] or columns["stat_pct"] is None:  # of no time at all: timer_limited says it better
        return ""
    spread = f"the interval is +-{columns['stat_pct']:.1f} % after {columns['samples']} samples"
    drift = columns["drift_pct"]
    return f"the time drifts by {drift:+.1f} %; {spread}" if abs(drift) > target_pct else spread


def _impossible(columns: Mapping[str, Any], target_pct: float) -> str:
    if columns.get("n_kernels") == 0:
        return "it ran no kernel, copy or fill: what it gave had been there before"
    least = columns.get("fastest_possible_us")
    if least is None or columns["gpu_us"] >= least:
        return ""
    return f"this GPU cannot do it in less than {least:.3g} us, by the rates measured on it"


def _contradicted(columns: Mapping[str, Any], target_pct: float) -> str:
    cupti, time = columns.get("cupti_us"), columns.get("gpu_us")
    if columns.get("instrument") == "host_clock" or cupti is None or time is None or columns.get("n_kernels") != 1:
        return ""
    doubted_us = columns.get("high_us", time) - time  # of events, which owns up to 4.4 us, more than of timestamps
    share = WATCHED_SHARE if cupti > time else DISAGREE_SHARE
    if abs(cupti - time) <= max(DISAGREE_US, share * time, doubted_us):
        return ""
    return f"CUPTI says {cupti:.3g} us where {columns['instrument']} says {time:.3g} us"


def _timer_limited(columns: Mapping[str, Any], target_pct: float) -> str:
    if columns["interval_pct"] is None:
        return f"{columns['instrument']} cannot tell it from a call that does nothing"
    best_pct = math.sqrt(max(0.0, columns["interval_pct"] ** 2 - (columns["stat_pct"] or 0.0) ** 2))
    if best_pct <= target_pct:  # what is left of the interval when sampling has nothing to add
        return ""
    return f"so short a call is known to +-{best_pct:.1f} % at best with {columns['instrument']}"


def _launch_bound(columns: Mapping[str, Any], target_pct: float) -> str:
    time, seen = columns.get("gpu_us"), columns.get("latency_us")
    if not time or not seen or (columns.get("n_kernels") or 1) == 1 or seen <= BOUND_BY_LAUNCH * time:
        return ""
    return f"a caller waits {seen:.4g} us: launching takes longer than the {time:.4g} us that the GPU works"


def _contended(columns: Mapping[str, Any], target_pct: float) -> str:
    if (moved_us := columns.get("timer_drift_us") or 0.0) <= -MOST_DRIFT_US:
        return f"what does nothing reads {-moved_us:.2g} us less than its zero: other processes come to this GPU and go"
    waited = columns.get("cpu_wait_pct", 0.0)
    return f"its threads waited {waited:.0f} % of the time for other processes" if waited > CONTENDED_PCT else ""


UNTRUE = {"impossible": _impossible, "contradicted": _contradicted}  # a time that nobody is to be praised for
DOUBTS = UNTRUE | {
    "contended": _contended,
    "power_capped": _power_capped,
    "not_converged": _not_converged,
    "timer_limited": _timer_limited,
    "launch_bound": _launch_bound,
}
# The gravest first; what is no doubt about times is the worker's.
GRAVITY = ("wrong", "debug", *UNTRUE, "fallback", *(word for word in DOUBTS if word not in UNTRUE), "ok")
