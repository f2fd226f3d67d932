"""Derive figures from rows: rates, speed-ups, and the fastest case of each problem."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

from ..records.case import CaseRecord
from ..records.grouping import grouped
from ..records.labels import called
from ..records.paired_rounds import PairedRounds
from ..records.row import Row
from ..timing import statistics
from ..timing.statistics import Ratio
from ..timing.verdict import launch_bound
from .ratios import bounds, by_key, inverse, row_in_rounds, separate_ratio, time_ratio
from .replicas import between_pct, merge_replicas, replicas_by_case
from .validity import is_correct, is_wrong, may_win

WINS = ("yes", "tied")  # values of the column ``fastest``: a case without a rival does not win


@dataclass(frozen=True)
class Line:
    """A case with its derived columns: see ``DERIVED`` of runner/records/columns.py."""

    row: Row  # the replicas merged into one
    tflops: float | None = None
    gbps: float | None = None
    algo_gbps: float | None = None
    bus_gbps: float | None = None
    replicas: int = 1
    between_pct: float | None = None
    in_rounds: Row | None = None  # the row with its time in the paired rounds; None without one
    baseline: bool = False
    err_ratio: float | None = None
    ratio: Ratio | None = None  # time over the baseline's, if both have an interval
    speedup: float | None = None  # None for a wrong result
    speedup_low: float | None = None
    speedup_high: float | None = None
    paired: bool | None = None
    vs_baseline: str | None = None
    raced: bool = False  # a race has shown ``vs_baseline``: its paired rounds ended when the slower one dropped out
    fastest: Literal["yes", "tied", "only", "unknown", "no"] = "no"
    winner: bool = False  # the first of its problem, also if another is tied with it
    behind: Ratio | None = None  # time over the winner's, if it is correct and both have an interval
    vs_winner: str | None = None  # slower | same | unclear
    launch_bound: bool = False  # some case of its problem is: what a caller gets then matters beside the GPU time

    @property
    def case(self) -> CaseRecord:
        """The case."""
        return self.row.case

    @property
    def time_us(self) -> float | None:
        """Time of one call in us."""
        return self.row.time_us

    @cached_property
    def shown(self) -> Self:
        """The line for people: its time, interval and rates are those of the paired rounds, if there are some."""
        return replace(self, row=self.in_rounds, **_rates(self.in_rounds)) if self.in_rounds else self

    @property
    def paired_time_us(self) -> float | None:
        """Time of one call in the paired rounds in us."""
        return self.in_rounds.time_us if self.in_rounds else None

    @property
    def paired_interval_pct(self) -> Any:
        """Half the width of the 95 % interval of that time in percent."""
        return self.in_rounds and self.in_rounds.metrics["interval_pct"]

    def value(self, column: str) -> Any:
        """Return the value of a measured or derived column; None if it is not known."""
        return self.row.metrics[column] if column in self.row.metrics else getattr(self, column, None)


def derive_lines(
    rows: Iterable[Row],
    baseline: str | None,
    rounds: Iterable[PairedRounds] = (),
    missing: Iterable[CaseRecord] = (),
) -> list[Line]:
    """Return one line per case. Cases of a problem stand together; problems are in order of appearance.

    ``missing``: cases that have not run, so that nothing is known to be the fastest of their problems.

    ``baseline``: label of the implementation that speed-ups are against; None: torch, else the reference
    of a user's workload, else the first correct one.
    """
    cases = grouped(replicas_by_case(rows).values(), lambda replicas: replicas[0].case.problem)
    rounds = list(rounds)
    compared, dropped = by_key(rounds), {key for each in rounds for key in each.dropped}
    problems = [_Problem(replicas, baseline, compared, dropped) for replicas in cases.values()]
    unfinished = {case.problem for case in missing}
    # All comparisons of the table together.
    words = iter(statistics.words([ratio for problem in problems for ratio in problem.ratios.values()]))
    judged = (problem.judged(dict(zip(problem.ratios, words, strict=False)), unfinished) for problem in problems)
    return [line for lines in judged for line in lines]


class _Problem:
    """The cases of one problem, compared with the baseline and with the fastest; ``cases`` has the replicas of each.

    ``dropped``: keys of cases that a race has shown to be slower.
    """

    def __init__(
        self,
        cases: Sequence[list[Row]],
        baseline: str | None,
        compared: Mapping[str, PairedRounds],
        dropped: Collection[str],
    ) -> None:
        rows = [merge_replicas(replicas) for replicas in cases]
        self.base = base = _baseline(rows, baseline)
        bound = any(launch_bound(row.metrics) for row in rows if "pipelined_us" in row.metrics)
        self.lines = []
        for row, replicas in zip(rows, cases, strict=True):
            columns = {} if base is None else _against(row, rows[base], replicas, cases[base], compared)
            timed = row_in_rounds(row, replicas, compared)
            columns["in_rounds"] = None if timed is row else timed
            columns |= _rates(row) | {"between_pct": between_pct(replicas), "launch_bound": bound}
            self.lines.append(Line(row, replicas=len(replicas), **columns))
        self.dropped = {place for place, row in enumerate(rows) if row.case.key in dropped}
        self.rivals = [place for place, row in enumerate(rows) if may_win(row) and place not in self.dropped]
        self.best = best = _fastest(self.lines, self.rivals)
        # By the places of two cases: the time of the first over that of the second.
        self.ratios = {(i, base): line.ratio for i, line in enumerate(self.lines) if base is not None and line.ratio}
        others = [i for i in self.rivals if i != best and (best, i) not in self.ratios and (i, best) not in self.ratios]
        for i in others:
            if best is not None and (ratio := time_ratio(cases[i], cases[best], compared)):
                self.ratios[i, best] = ratio

    def judged(self, words: Mapping[tuple[int, int], str], unfinished: Collection[str]) -> list[Line]:
        """Return the lines with the conclusions ``words`` of ``ratios``. No line wins a problem in ``unfinished``."""
        base, best = self.base, self.best
        raced = {(i, j): "slower" for i, j in words if i in self.dropped and j == best}
        raced |= {(i, j): "faster" for i, j in words if i == best and j in self.dropped}
        words = {**words, **raced}  # the race has shown what separate times may leave unclear
        behind = {i for (i, j), word in words.items() if j == best and word == "slower"}
        behind |= {j for (i, j), word in words.items() if i == best and word == "faster"}
        ahead = [] if best is None else [i for i in self.rivals if i not in behind]
        may = [line for line in self.lines if may_win(line.row)]
        tied = {i for i in ahead if self._is_tied(i, words)}
        lines = []
        for i, line in enumerate(self.lines):
            ratio, vs_winner = self._behind(i, words)
            columns: dict[str, Any] = {"winner": i == best, "behind": ratio, "vs_winner": vs_winner}
            alone = "unknown" if ahead[1:] else "yes" if len(may) > 1 else "only"
            word = "no" if i not in ahead else "tied" if i in tied or (i == best and tied) else alone
            columns |= {"fastest": "unknown" if word != "no" and line.case.problem in unfinished else word}
            columns |= {"vs_baseline": None if base is None else words.get((i, base)), "raced": (i, base) in raced}
            if columns["raced"]:  # the interval of the separate times decides nothing
                columns |= {"speedup_low": None, "speedup_high": None}
            lines.append(replace(line, **columns))
        return lines

    def _is_tied(self, place: int, words: Mapping[tuple[int, int], str]) -> bool:
        """Return whether the interval of the ratio to the fastest includes 1. In rounds, it is that of all pairs.

        Two separate times that may not be compared are no tie, unless their own intervals overlap.
        """
        ratio, _ = self._behind(place, words)
        if self.best is None or ratio is None or ratio.half == math.inf:
            return False
        alone = separate_ratio(self.lines[place].row, self.lines[self.best].row)
        return ratio.paired or (alone is not None and abs(alone.log) <= alone.half)

    def _behind(self, place: int, words: Mapping[tuple[int, int], str]) -> tuple[Ratio | None, str | None]:
        """Return the ratio of the case at ``place`` to the fastest, and its conclusion; None, None without one."""
        if self.best is None or place == self.best or place not in self.rivals:
            return None, "slower" if self.best is not None and place in self.dropped else None
        if ratio := self.ratios.get((place, self.best)):
            return ratio, words.get((place, self.best))
        if ratio := self.ratios.get((self.best, place)):
            return inverse(ratio), OPPOSITE.get(words.get((self.best, place), ""))
        return None, None


USUAL_BASELINES = ("torch", "reference")  # the second is that of a workload in a file of the user's
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unclear": "unclear"}


def _against(
    row: Row, base: Row, replicas: Sequence[Row], base_replicas: Sequence[Row], compared: Mapping[str, PairedRounds]
) -> dict[str, Any]:
    """Return the columns that compare a case with the baseline."""
    error, base_error = row.metrics.get("max_abs_err"), base.metrics.get("max_abs_err")
    columns: dict[str, Any] = {"baseline": row is base}
    columns["err_ratio"] = float(error) / float(base_error) if error is not None and base_error else None
    time_us, base_us = row.time_us or 0.0, base.time_us or 0.0
    if row is base or min(time_us, base_us) <= 0 or is_wrong(row):
        return columns | ({"speedup": 1.0} if row is base and row.time_us else {})
    if not (ratio := time_ratio(replicas, base_replicas, compared)):
        return columns | {"speedup": base_us / time_us}
    low, high = bounds(inverse(ratio)) or (None, None)
    columns |= {"ratio": ratio, "paired": ratio.paired, "speedup": math.exp(-ratio.log)}
    return columns | {"speedup_low": low, "speedup_high": high}


def _rates(row: Row) -> dict[str, Any]:
    """Return work over time. A collective's is as in https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md."""
    algo_gbps = _rate(row, "algo_bytes", 1e-3)
    rates = {"tflops": _rate(row, "flops", 1e-6), "gbps": _rate(row, "bytes_min", 1e-3), "algo_gbps": algo_gbps}
    return rates | {"bus_gbps": algo_gbps and algo_gbps * float(row.metrics.get("bus_factor") or 1.0)}


def _rate(row: Row, column: str, scale: float) -> float | None:
    """Return ``column`` per microsecond, times ``scale``; None if it is 0, as the operations of a copy are."""
    amount = row.metrics.get(column)
    return float(amount) / row.time_us * scale if amount and row.time_us else None


def _baseline(rows: Sequence[Row], name: str | None) -> int | None:
    """Return the index of the case called ``name``; or of a usual baseline, or the first correct."""
    timed = [index for index, row in enumerate(rows) if row.time_us is not None and (name or is_correct(row))]
    impls = [row.case.impl for row in rows]
    names = [name] if name else USUAL_BASELINES
    meant = [place for label in names for place in called(impls, label) if place in timed]
    return next(iter(meant if meant or name else timed), None)


def _fastest(lines: Sequence[Line], rivals: Sequence[int]) -> int | None:
    """Return the fastest of ``rivals``, by speed-ups if all have one, since paired rounds are more exact than times.

    A time of 0, which cannot be told from that of an empty call, is not ranked.
    """
    ranked = [place for place in rivals if lines[place].time_us]
    if all(lines[place].speedup for place in ranked):
        return max(ranked, key=lambda place: lines[place].speedup or 0.0, default=None)
    return min(ranked, key=lambda place: lines[place].time_us or 0.0, default=None)
