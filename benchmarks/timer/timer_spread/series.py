"""Samples of processes, and statistics of them. This needs no GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from runner.timing.statistics import BATCHES, FLOORS, LOOK_TWICE, T_975, Floor, summarise, trimmed_mean

ZONE, SAME = 0.005, 0.01  # a difference below the first is not called; below the second, times are the same
APART = 0.01  # a larger difference between two processes counts

METHODS = ("timestamps", "events")
# One standard deviation of the ratio's two sides when the arms are interleaved: ``FLOORS`` is for one alone.
PAIR_FLOORS = {"timestamps": Floor(0.005, 0.0003), "events": Floor(0.02, 0.0005)}

FIRST, AGAIN, LONGER_1, LONGER_2 = "A", "A'", "+1 %", "+2 %"

Word = Literal["slower", "faster", "same", "unclear"]


@dataclass(frozen=True)
class Arm:
    """One call with its own buffers, by one method."""

    call: str
    role: str  # FIRST, AGAIN, LONGER_1, LONGER_2
    method: str  # one of METHODS


@dataclass(frozen=True)
class Process:
    """The samples of one process, in us, less the constant of their method, in their order."""

    head: dict[str, Any]
    series: dict[Arm, list[float]]


@dataclass(frozen=True)
class Pair:
    """The comparison of a call B with a call A."""

    log_ratio: float  # of B over A
    half: float  # of its 95 % interval
    word: Word


@dataclass(frozen=True)
class Spread:
    """The spread of one call by one method over all processes. Lists have the entries of A, then those of A'."""

    call: str
    time_us: float
    sd_ns: float  # between processes
    pairs_apart: list[bool]  # each two processes
    again: list[Pair]  # A' against A, one for each process
    covered: list[bool]  # whether each process's whole interval contains the mean of all; empty without intervals


@dataclass(frozen=True)
class Longer:
    """A longer spin against A and against A' in each process, by one method."""

    call: str
    role: str
    pairs: list[Pair]

    @property
    def found(self) -> float:
        """Share of the pairs with the verdict "slower"."""
        return fmean(pair.word == "slower" for pair in self.pairs)


def pair(a: Sequence[float], b: Sequence[float], floor: Floor) -> Pair:
    """Compare B with A, from ten consecutive batches of each in the same rounds, and the ``floor`` of both sides."""
    means = ([trimmed_mean(batch) for batch in batches(samples)] for samples in (a, b))
    logs = [math.log(after / before) for before, after in zip(*means, strict=True)]
    time_us = trimmed_mean(a)
    sampling = T_975[BATCHES - 1] * stdev(logs) / math.sqrt(BATCHES) * LOOK_TWICE
    half = math.hypot(sampling, math.sqrt(2) * floor.widen(0.0, time_us) / time_us)
    log_ratio = math.log(trimmed_mean(b) / time_us)
    return Pair(log_ratio, half, judged(log_ratio, half))


def judged(log_ratio: float, half: float) -> Word:
    """Return the verdict for a ratio and half its interval. Too little data gives "unclear", never "same"."""
    if abs(log_ratio) - half > ZONE:
        return "slower" if log_ratio > 0 else "faster"
    return "same" if abs(log_ratio) + half < SAME else "unclear"


def batches(samples: Sequence[float]) -> list[Sequence[float]]:
    """Split ``samples`` into ``BATCHES`` parts in order of time. Raises ValueError if there are fewer samples."""
    if len(samples) < BATCHES:
        raise ValueError(f"{len(samples)} samples do not make {BATCHES} batches")
    edges = [len(samples) * part // BATCHES for part in range(BATCHES + 1)]
    return [samples[edges[part] : edges[part + 1]] for part in range(BATCHES)]


def apart(times_us: Sequence[float]) -> list[bool]:
    """Return for each pair of processes whether their times differ by more than ``APART``."""
    return [abs(math.log(one / other)) > APART for one, other in combinations(times_us, 2)]


def covered(series: Sequence[Sequence[float]], floor: Floor) -> list[bool]:
    """Return for each process whether its whole interval contains the mean of all estimates."""
    summaries = [summarise(samples) for samples in series]
    value = fmean(summary.estimate for summary in summaries)
    return [
        abs(summary.estimate - value) <= floor.widen(summary.half_width * summary.estimate, summary.estimate)
        for summary in summaries
    ]


def spread(processes: Sequence[Process], call: str, method: str) -> Spread:
    """Return the spread of ``call`` over the processes, by one method."""
    arms = [[process.series[Arm(call, role, method)] for process in processes] for role in (FIRST, AGAIN)]
    times = [[trimmed_mean(samples) for samples in arm] for arm in arms]
    floor = FLOORS["graph_timestamps"] if method == "timestamps" else None
    return Spread(
        call=call,
        time_us=fmean(fmean(arm) for arm in times),
        sd_ns=math.hypot(*(stdev(arm) for arm in times)) / math.sqrt(len(times)) * 1e3,
        pairs_apart=[far for arm in times for far in apart(arm)],
        again=[pair(first, again, PAIR_FLOORS[method]) for first, again in zip(*arms, strict=True)],
        covered=[holds for arm in arms for holds in covered(arm, floor)] if floor else [],
    )


def longer(processes: Sequence[Process], call: str, role: str, method: str) -> Longer:
    """Return the comparisons of the longer spin in all processes."""
    pairs = [
        pair(process.series[Arm(call, base, method)], process.series[Arm(call, role, method)], PAIR_FLOORS[method])
        for process in processes
        for base in (FIRST, AGAIN)
    ]
    return Longer(call, role, pairs)


def keep(process: Process, path: Path) -> None:
    """Write a line of facts, then a line for each arm. The file gets its name when it is complete."""
    lines: list[dict[str, Any]] = [process.head]
    lines += [{**vars(arm), "samples": [round(us, 4) for us in some]} for arm, some in process.series.items()]
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    part.rename(path)


def kept(path: Path) -> Process:
    """Read the file that ``keep`` has written."""
    head, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return Process(head, {Arm(line["call"], line["role"], line["method"]): line["samples"] for line in lines})
