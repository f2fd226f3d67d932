"""The ratio of two times, from paired rounds, from replicas or from two separate times."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, variance
from typing import Any, Literal

from ..records.figures import finite, times
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..timing import statistics
from ..timing.statistics import FLOORS, NO_FLOOR, T_975, Ratio, pair_floors, shared_us
from ..timing.verdict import GRAVITY
from .replicas import halves, merge_replicas, with_time
from .validity import certain, gravity_of


def inverse(ratio: Ratio) -> Ratio:
    """Return the second time over the first."""
    return replace(ratio, log=-ratio.log, separate=None if ratio.separate is None else -ratio.separate)


def bounds(ratio: Ratio) -> tuple[float, float] | None:
    """Return the 95 % interval of a ratio; None if it is infinite, as without a known spread, or beyond all numbers."""
    if ratio.half >= BOUNDLESS or abs(ratio.log) + ratio.half >= statistics.LARGEST:
        return None
    return math.exp(ratio.log - ratio.half), math.exp(ratio.log + ratio.half)


def by_key(rounds: Iterable[PairedRounds]) -> dict[str, PairedRounds]:
    """Return the paired rounds in which each case was measured, by its key."""
    return {key: each for each in rounds for key in each.batches_us}


def time_ratio(replicas: Sequence[Row], base: Sequence[Row], compared: Mapping[str, PairedRounds]) -> Ratio | None:
    """Return the time of a case over the baseline's, from paired rounds if every process has some.

    Otherwise it comes from the separate times. It is None if these are from different GPUs or numbers of threads, as
    after a resume, since two GPUs of a kind differ by more than either interval shows.
    """
    if ratio := ratio_in_rounds(replicas, base, compared):
        return ratio
    if _devices(replicas) != _devices(base):
        return None
    return separate_ratio(merge_replicas(replicas), merge_replicas(base), apart=max(map(apart, (*replicas, *base))))


def ratio_in_rounds(replicas: Sequence[Row], base: Sequence[Row], compared: Mapping[str, PairedRounds]) -> Ratio | None:
    """Return the time of a case over the baseline's, from the paired rounds of each process; None if one has none.

    ``compared``: the rounds, by the keys of their cases.
    The half-width of the ratio is infinite if the separate times contradict it.
    """
    base_keys = {row.case.replica: row.case.key for row in base}
    ratios = []
    for row in replicas:
        rounds, key, base_key = compared.get(row.case.key), row.case.key, base_keys.get(row.case.replica, "")
        if rounds and base_key in rounds.batches_us:
            batches = rounds.batches_us[key], rounds.batches_us[base_key]
            if min(map(min, batches)) > 0:  # a call that does nothing may read below 0, and has no ratio
                instruments = rounds.instruments[key], rounds.instruments[base_key]
                ratios.append(statistics.paired(*batches, pair_floors(*instruments), shared_us(*instruments)))
    if len(ratios) != max(len(replicas), len(base)):
        return None
    ratio = statistics.pooled(ratios)
    widest = max(apart(row, CONTRADICTED_BY) for row in (*replicas, *base))
    separate = separate_ratio(merge_replicas(replicas), merge_replicas(base), apart=widest)
    return replace(ratio, half=math.inf, separate=separate.log) if separate and _contradict(ratio, separate) else ratio


def _contradict(ratio: Ratio, separate: Ratio) -> bool:
    """Return whether the ratio of the separate times differs from that in paired rounds by more than noise.

    Conclusions that agree stand, unless the two ratios differ by twice what noise explains, or more.
    """
    agree = ratio.word == separate.word != "unclear"
    noise = max(VISIBLE, math.hypot(ratio.half, separate.half))
    return abs(ratio.log - separate.log) > noise + (MOST_CONTENDED if agree else 0.0)


def time_in_rounds(replicas: Sequence[Row], compared: Mapping[str, PairedRounds]) -> Ratio | None:
    """Return the time of a case in the paired rounds of each process, as a ratio to 1 us; None if one has none.

    A case whose rounds have no other left, since these were wrong or dropped out of a race, has none either.
    """
    found = []
    for row in replicas:
        rounds, key = compared.get(row.case.key), row.case.key
        if rounds is None or len(rounds.batches_us) < 2 or row.time_us is None or min(rounds.batches_us[key]) <= 0:
            return None
        batches_us, floors = rounds.batches_us[key], (FLOORS[rounds.instruments[key]], NO_FLOOR)
        found.append(statistics.paired(batches_us, [1.0] * len(batches_us), floors))
    return statistics.pooled(found)


def row_in_rounds(row: Row, replicas: Sequence[Row], compared: Mapping[str, PairedRounds]) -> Row:
    """Return ``row``, of which ``replicas`` are merged, with the time and the interval that it has in paired rounds."""
    if time := time_in_rounds(replicas, compared):
        us, share = math.exp(time.log), math.exp(time.half)
        return with_time(row, us, us / share, us * share, 100 * (share - 1))
    return row


VISIBLE = math.log(1.05)  # separate times may suggest another ratio by as much, whatever their intervals
CONTRADICTED_BY = 2  # times what separate times of one call differ by in 95 of 100 cases, for a contradiction
BOUNDLESS = math.log(1e8)  # half of an interval that excludes no ratio, as where threads waited all the time
MOST_CONTENDED = math.log(2)  # other processes, a drift or few samples may double a time, where nothing better is known
FALSE = "one of the two may be false, or did not run as requested: see its verdict"
CONTRADICTION = "{} as fast in paired rounds, {} by separate times, which noise does not explain: measure both again"
DOUBTFUL = (
    "one of them is contended, not converged or of fewer than 10 samples, or this machine has no certificate (python "
    "-m runner verify): only a factor above 2, and above what waiting for cores explains, is a conclusion"
)


def doubt(ratio: Ratio) -> str:
    """Return the reason why the intervals decide nothing, or not about a factor up to 2; "" if they decide."""
    if ratio.separate is not None:
        return CONTRADICTION.format(times(math.exp(-ratio.log)), times(math.exp(-ratio.separate)))
    if ratio.paired or ratio.half < MOST_CONTENDED:
        return ""
    return DOUBTFUL if math.isfinite(ratio.half) else FALSE


def apart(row: Row, widened: float = 1.0) -> float:
    """Return by how much another time of the same call may differ from this one, as a logarithm.

    ``widened``: factor on what ``verify`` found for this machine.
    It is infinite if the time may be false. If it is contended, not converged or of few samples, or if this machine has
    no certificate of ``verify``, it may be twice as long as another one, or longer by as much as its threads waited:
    while one of them has no core, all others may wait for it, and those that spin count as running.
    """
    if gravity_of(row) < GRAVITY.index("contended"):
        return math.inf
    percent, waited_pct = row.metrics.get("separate_pct"), float(row.metrics.get("cpu_wait_pct") or 0.0)
    if certain(row) and percent is not None:
        return widened * float(percent) / 100
    waited = (finite(row.metrics.get("threads")) or 1.0) * waited_pct / 100
    return max(MOST_CONTENDED, min(BOUNDLESS, -math.log(max(1e-9, 1 - waited))))


def separate_ratio(row: Row, base: Row, apart: float = 0.0) -> Ratio | None:
    """Return the ratio of two separate times; None if one of them is 0 or below, or has no interval."""
    intervals = [
        (each.time_us, float(percent) / 100)
        for each in (row, base)
        if each.time_us and each.time_us > 0 and (percent := each.metrics.get("interval_pct")) is not None
    ]
    return statistics.unpaired(*intervals, apart=apart) if len(intervals) == 2 else None


Spread = Literal[
    "replicas",  # at least three processes on each side
    "verify",  # certificates of both: how much the times of one call in several processes differ
]
FEWEST_REPLICAS = 3  # processes on each side, for a spread between processes


def known_spread(first: Sequence[Row], other: Sequence[Row]) -> tuple[Ratio, Spread] | None:
    """Return the time of ``other`` over that of ``first``, each from the rows of a case's replicas in a run.

    None if it is not known by how much two runs of one case differ.
    """
    if min(len(first), len(other)) >= FEWEST_REPLICAS and all(row.time_us for row in (*first, *other)):
        return between_processes(first, other), "replicas"
    percents = [row.metrics.get("separate_pct") for row in (*first, *other)]
    known = [float(percent) for percent in percents if percent is not None]
    if len(known) == len(percents):
        ratio = separate_ratio(merge_replicas(other), merge_replicas(first), apart=max(known) / 100)
        return (ratio, "verify") if ratio else None
    return None


def _devices(rows: Sequence[Row]) -> set[Any]:
    """Return the GPUs that ``rows`` were timed on, or the numbers of CPU threads."""
    return {row.metrics.get("threads" if row.device == "cpu" else "gpu_uuid") for row in rows}


def between_processes(first: Sequence[Row], other: Sequence[Row]) -> Ratio:
    """Return the time of ``other`` over that of ``first``, each from several processes, by Welch's t-test of the logs.

    All times are above 0.
    The uncertainty of the instrument may be the same in all processes, so more of them do not reduce it.
    """
    log, squares, sampling, systematic, freedom = 0.0, [], 0.0, 0.0, []
    for sign, rows in ((-1, first), (1, other)):
        logs = [math.log(row.time_us) for row in rows if row.time_us]
        log += sign * fmean(logs)
        squares.append(variance(logs) / len(logs))
        freedom.append(len(logs) - 1)
        parts = list(map(halves, rows))
        sampling += fmean(half**2 for half, _ in parts) / len(parts)
        systematic += min(instrument for _, instrument in parts) ** 2
    total = sum(squares)
    welch = total**2 / sum(square**2 / n for square, n in zip(squares, freedom, strict=True)) if total else sum(freedom)
    degrees = max(1, min(int(welch), max(T_975)))
    between, within = T_975[degrees] * math.sqrt(total), math.sqrt(sampling)
    if within >= between:
        degrees = max(T_975)
    half = math.hypot(max(between, within), math.sqrt(systematic))
    return Ratio(log, half, degrees, paired=False, systematic=math.sqrt(systematic))
