"""What follows from rows: rates, speed-ups, who is fastest, and names as short as the grid allows.

A row holds what was measured; everything here can be worked out again from rows and rounds at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Literal

from runner.experiment.case import CaseRecord, Choice, Labels, Scalar, is_called, several, varying
from runner.experiment.results import Comparison, Row
from runner.timing import statistics
from runner.timing.procedure import GRAVITY, UNTRUE
from runner.timing.statistics import T_975, Ratio, pair_floors, shared_us


@dataclass(frozen=True)
class Line:
    """A case and what follows from its rows and from the other cases of its problem, by the columns ``DERIVED``."""

    row: Row  # of several replicas, the one that speaks for all
    baseline: bool = False
    tflops: float | None = None
    gbps: float | None = None
    base_us: float | None = None  # the baseline's time; None beside a wrong result, which is faster than nothing
    ratio: Ratio | None = field(default=None, compare=False)  # of its time over that, if both have an interval
    apart: Ratio | None = field(default=None, compare=False)  # the same of the two times, where ``ratio`` is of rounds
    vs_baseline: str | None = None
    err_ratio: float | None = None
    replicas: int = 1
    between_pct: float | None = None
    fastest: Literal["yes", "no"] = "no"

    @property
    def time_us(self) -> float | None:
        """That of the row."""
        return self.row.time_us

    @property
    def paired(self) -> bool | None:
        """Whether the ratio is of one moment."""
        return self.ratio.paired if self.ratio else None

    @property
    def speedup(self) -> float | None:
        """Baseline's time over this one's."""
        if self.ratio:
            return math.exp(-self.ratio.log)
        return self.base_us / self.time_us if self.base_us and self.time_us else None

    @property
    def speedup_low(self) -> float | None:
        """Lower end of its 95 % interval."""
        return math.exp(-self.ratio.log - self.ratio.half) if self.ratio else None

    @property
    def speedup_high(self) -> float | None:
        """Upper end of it."""
        return math.exp(-self.ratio.log + self.ratio.half) if self.ratio else None

    @property
    def contradicted(self) -> bool:
        """Whether two times taken one after the other say otherwise than the rounds, by more than both intervals."""
        if not self.ratio or not self.apart:
            return False
        return abs(self.ratio.log - self.apart.log) > self.ratio.half + self.apart.half

    def value(self, column: str) -> Any:
        """What ``column`` of ``runner.experiment.columns``, measured or derived, is here; None if it is not known."""
        return self.row.metrics[column] if column in self.row.metrics else getattr(self, column, None)


class Names:
    """Labels that tell the cases of one grid apart, and say nothing that is the same for all."""

    def __init__(self, cases: Sequence[CaseRecord]) -> None:
        self._labels = Labels(case.impl for case in cases)
        self._beside = several(case.settings for case in cases)
        varied = varying(case.workload for case in cases)
        chosen: dict[str, list[Choice]] = {}
        for case in cases:
            chosen.setdefault(case.workload.name, []).append(case.workload)
        self._axes = {name: _axes(some, varied[name]) for name, some in chosen.items()}
        self._constants = {
            name: {key: value for key, value in some[0].fields.items() if key not in varied[name]}
            for name, some in chosen.items()
        }

    def impl(self, case: CaseRecord) -> str:
        """``compiled``, or ``compiled(mode=default)`` where the grid has several."""
        return self._labels.label(case.impl)

    def value(self, line: Line, column: str) -> Any:
        """The value of ``column`` in ``line``, as ``Line.value`` gives it; only this class knows the label."""
        return self.impl(line.row.case) if column == "implementation" else line.value(column)

    def axes(self, workload: str) -> list[str]:
        """The fields of ``workload`` that vary over the grid, in the order of its class."""
        return self._axes[workload]

    def constants(self, workload: str) -> dict[str, Scalar]:
        """The fields that do not, with their one value."""
        return self._constants[workload]

    def beside(self, case: CaseRecord) -> dict[str, Scalar]:
        """What varies over the grid that is neither of the workload nor of the implementation, with its value here."""
        return {name: value for name, value in case.settings.items() if name in self._beside}

    def problem(self, case: CaseRecord) -> dict[str, Scalar]:
        """All that tells the problem of ``case`` from others of its workload, with its value here."""
        return {name: case.workload.fields[name] for name in self.axes(case.workload.name)} | self.beside(case)

    def heading(self, case: CaseRecord) -> str:
        """``gelu cols=1024 seed=1``: the workload and what varies, but for the implementation."""
        return " ".join([case.workload.name, *(f"{name}={value}" for name, value in self.problem(case).items())])

    def case(self, case: CaseRecord) -> str:
        """``gelu cols=1024 seed=1 triton``: that, and the implementation."""
        return f"{self.heading(case)} {self.impl(case)}"


def lines(rows: Iterable[Row], baseline: str | None, rounds: Iterable[Comparison] = ()) -> list[Line]:
    """A line per case, with its rates and its place among those of its problem, the problems in order of appearance."""
    problems: dict[str, list[list[Row]]] = {}
    for case in by_case(rows):
        problems.setdefault(case[0].case.problem, []).append(case)
    compared = {key: one for one in rounds for key in one.batches_us}
    found = [line for problem in problems.values() for line in _problem(problem, baseline, compared)]
    with_ratio = [index for index, line in enumerate(found) if line.ratio]
    words = statistics.words([line.ratio for line in found if line.ratio])
    for index, word in zip(with_ratio, words, strict=True):
        found[index] = replace(found[index], vs_baseline=word)
    return found


def _problem(cases: Sequence[list[Row]], baseline: str | None, compared: Mapping[str, Comparison]) -> list[Line]:
    reference = _baseline([case for case in cases if merged(case).time_us is not None], baseline)
    base = merged(reference) if reference else None
    found = []
    for case in cases:
        row = merged(case)
        is_baseline = case is reference
        judged = is_baseline or (row.time_us is not None and is_right(row))
        ratio = _ratio(case, reference, compared) if reference and judged and not is_baseline else None
        found.append(
            Line(
                row=row,
                baseline=is_baseline,
                tflops=_rate(row, "flops", 1e-6),
                gbps=_rate(row, "bytes_min", 1e-3),
                base_us=base.time_us if base and judged else None,
                ratio=ratio,
                apart=_apart(row, base) if base and ratio and ratio.paired else None,
                err_ratio=_error(row, base) if base else None,
                replicas=len(case),
                between_pct=between_pct(case),
            )
        )
    if fastest := _fastest(found):
        found[found.index(fastest)] = replace(fastest, fastest="yes")
    return found


def is_right(row: Row) -> bool:
    """Whether nothing wrong was found, neither when it was checked nor in the timed calls."""
    return row.status != "wrong" and row.metrics.get("verdict") != "wrong"


def _baseline(timed: Sequence[list[Row]], name: str | None) -> list[Row] | None:
    """The case that speed-ups are against: the one asked for; else, of the right ones, ``torch`` or the first."""
    able = timed if name else [case for case in timed if is_right(merged(case))]
    for case in able:
        if is_called(case[0].case.impl, name or "torch"):
            return case
    return None if name else next(iter(able), None)


def _ratio(case: Sequence[Row], reference: Sequence[Row], compared: Mapping[str, Comparison]) -> Ratio | None:
    """Return the time of ``case`` over that of ``reference``: from common rounds, else from two times with intervals.

    Comparison count if every process had some: those of one say nothing of what processes differ by. None where the two
    are of different GPUs or numbers of threads, as after a resume, or when a GPU was lost in the middle of a problem.
    """
    keys = {row.case.replica: row.case.key for row in reference}
    found = []
    for row in case:
        rounds, other = compared.get(row.case.key), keys.get(row.case.replica, "")
        if rounds and other in rounds.batches_us:
            both = rounds.batches_us[row.case.key], rounds.batches_us[other]
            if min(map(min, both)) <= 0:  # no time, and so no ratio: what an instrument reads of nothing is taken off
                continue
            names = rounds.instruments[row.case.key], rounds.instruments[other]
            found.append(statistics.paired(*both, pair_floors(*names), shared_us(*names)))
    if len(found) == max(len(case), len(reference)):
        return statistics.pooled(found)
    if _where(case) != _where(reference):  # two of a kind differ by per cents, which no interval of either holds
        return None
    return _apart(merged(case), merged(reference))


def _apart(row: Row, base: Row) -> Ratio | None:
    """Return the ratio of two times that were taken one after the other."""
    mine, theirs = _interval(row), _interval(base)
    return statistics.unpaired(mine, theirs) if mine and theirs else None


def _where(rows: Sequence[Row]) -> set[Any]:
    """On which GPU they were timed, or by how many threads of a CPU."""
    return {row.metrics.get("threads" if row.device == "cpu" else "gpu_uuid") for row in rows}


def _interval(row: Row) -> tuple[float, float] | None:
    """Time and half its interval as a share of it; None if one is not known, or there is no time to speak of."""
    percent = row.metrics.get("interval_pct")
    return (row.time_us, float(percent) / 100) if row.time_us and percent is not None else None


def _fastest(lines: Sequence[Line]) -> Line | None:
    """By the speed-ups where all have one, since those are of one moment; else by the times."""
    right = [
        line
        for line in lines
        if line.row.status == "ok"
        and line.time_us  # of no time, nothing is known
        and not line.row.case.debug
        and line.row.metrics.get("verdict") not in UNTRUE
    ]
    if all(line.speedup for line in right):
        return max(right, key=lambda line: line.speedup or 0.0, default=None)
    return min(right, key=lambda line: line.time_us or 0.0, default=None)


def _error(row: Row, reference: Row) -> float | None:
    mine, theirs = row.metrics.get("max_abs_err"), reference.metrics.get("max_abs_err")
    return float(mine) / float(theirs) if mine is not None and theirs else None


def _rate(row: Row, column: str, scale: float) -> float | None:
    """``column`` a microsecond, times ``scale``."""
    amount = row.metrics.get(column)
    return float(amount) / row.time_us * scale if amount is not None and row.time_us else None


def _axes(chosen: Sequence[Choice], varying: set[str]) -> list[str]:
    """The varying fields that are not merely copies of an earlier one, as m, n and k are of size."""
    series = {name: [choice.fields[name] for choice in chosen] for name in chosen[0].fields if name in varying}
    names = list(series)
    return [name for i, name in enumerate(names) if series[name] not in [series[earlier] for earlier in names[:i]]]


def by_case(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of each case, whatever their replica, in order of appearance."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(replace(row.case, replica=0).key, []).append(row)
    return list(cases.values())


def merged(rows: Sequence[Row]) -> Row:
    """The row of a case: its only one; else one that failed; else one that was wrong, or the first, with all's time."""
    if len(rows) == 1:
        return rows[0]
    if untimed := [row for row in rows if row.time_us is None]:
        return next((row for row in untimed if row.status != "ok"), untimed[0])
    speaks, time = next((row for row in rows if row.status != "ok"), rows[0]), _time(rows)
    of_all = _of_all(rows, speaks) | time | _verdict(rows, time["interval_pct"])
    return replace(speaks, metrics={**speaks.metrics, **of_all})


def _of_all(rows: Sequence[Row], speaks: Row) -> dict[str, Scalar]:
    """What goes with the time of all: shares of it, how many samples, and the least of them."""
    mean = fmean(_times(rows))
    found: dict[str, Any] = {
        name: speaks.metrics[name] * (speaks.time_us or 0.0) / mean  # type: ignore[operator]
        for name in ("pct_of_measured_peak", "pct_datasheet")
        if mean and speaks.metrics.get(name)
    }
    if all("samples" in row.metrics for row in rows):
        found["samples"] = sum(row.metrics["samples"] for row in rows)
    if all("min_us" in row.metrics for row in rows):
        found["min_us"] = min(row.metrics["min_us"] for row in rows)  # type: ignore[type-var]
    return found


def between_pct(rows: Sequence[Row]) -> float | None:
    """Standard deviation of the time between processes, in percent of it; None for a single one, or a time of 0."""
    times = _times(rows)
    return 100 * stdev(times) / fmean(times) if len(times) > 1 and any(times) else None


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.time_us for row in rows if row.time_us is not None]


def _time(rows: Sequence[Row]) -> dict[str, Scalar]:
    """Mean and interval. What more samples would not show any of them may be the same in all, and stays."""
    times = _times(rows)
    mean, count = fmean(times), len(times)
    between = T_975[min(count - 1, max(T_975))] * stdev(times) / math.sqrt(count)
    doubts: list[tuple[Any, Any]] = [
        (row.metrics.get("interval_pct") or 0.0, row.metrics.get("stat_pct") or 0.0) for row in rows
    ]
    sampling = mean * min(stat for _, stat in doubts) / 100 / math.sqrt(count)
    unseen = mean * min(math.sqrt(max(0.0, whole**2 - stat**2)) for whole, stat in doubts) / 100
    half = math.hypot(between, sampling, unseen)
    column = "gpu_us" if "gpu_us" in rows[0].metrics else "wall_us"
    return {
        column: mean,
        "low_us": max(0.0, mean - half),
        "high_us": mean + half,
        "interval_pct": 100 * half / mean if mean else None,
    }


def _verdict(rows: Sequence[Row], interval_pct: Any) -> dict[str, Scalar]:
    """The gravest of all processes, or that they differ; a word of another version counts as grave."""
    words = [row.metrics.get("verdict", "ok") for row in rows]
    gravity = [GRAVITY.index(word) if word in GRAVITY else 0 for word in words]
    asked = _asked_pct(rows[0])
    if min(gravity) > GRAVITY.index("timer_limited") and interval_pct and asked and interval_pct > asked:
        why = f"the interval is +-{interval_pct:.1f} %, by what {len(rows)} processes differ"
        return {"verdict": "not_converged", "verdict_reason": why}
    doubted = rows[gravity.index(min(gravity))]
    return {name: doubted.metrics[name] for name in ("verdict", "verdict_reason") if name in doubted.metrics}


def _asked_pct(row: Row) -> float | None:
    """Half the interval that was asked for, in percent of the time; None of a row that does not say."""
    field = "target_cpu_pct" if row.device == "cpu" else "target_pct"
    asked: list[Any] = [measure.fields[field] for measure in row.case.measures if field in measure.fields]
    return next(iter(asked), None)
