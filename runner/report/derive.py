"""Derive figures from rows: rates, speed-ups, the fastest case of each problem, and short names of cases.

A row holds what was measured. Everything here can be computed again from rows and paired rounds at any time.
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
    """A case, with the derived columns (``DERIVED``) that follow from its rows and from its problem's other cases."""

    row: Row  # the replicas merged into one
    baseline: bool = False
    baseline_us: float | None = None  # None for a wrong result, which gets no speed-up
    ratio: Ratio | None = field(default=None, compare=False)  # time over the baseline's, if both have an interval
    separate: Ratio | None = field(default=None, compare=False)  # the same from separate times, if ``ratio`` is paired
    vs_baseline: str | None = None
    err_ratio: float | None = None
    replicas: int = 1
    between_pct: float | None = None
    fastest: Literal["yes", "no"] = "no"

    @property
    def time_us(self) -> float | None:
        """Time of one call in us."""
        return self.row.time_us

    @property
    def tflops(self) -> float | None:
        """Operations over the time in TFLOP/s."""
        return self._rate("flops", 1e-6)

    @property
    def gbps(self) -> float | None:
        """Minimum traffic over the time in GB/s."""
        return self._rate("bytes_min", 1e-3)

    def _rate(self, column: str, scale: float) -> float | None:
        amount = self.row.metrics.get(column)
        return float(amount) / self.time_us * scale if amount is not None and self.time_us else None

    @property
    def paired(self) -> bool | None:
        """Whether the ratio comes from paired rounds."""
        return self.ratio.paired if self.ratio else None

    @property
    def speedup(self) -> float | None:
        """Baseline's time over this time."""
        if self.ratio:
            return math.exp(-self.ratio.log)
        return self.baseline_us / self.time_us if self.baseline_us and self.time_us else None

    @property
    def speedup_low(self) -> float | None:
        """Lower end of the speed-up's 95 % interval."""
        return math.exp(-self.ratio.log - self.ratio.half) if self.ratio else None

    @property
    def speedup_high(self) -> float | None:
        """Upper end of the speed-up's 95 % interval."""
        return math.exp(-self.ratio.log + self.ratio.half) if self.ratio else None

    @property
    def contradicted(self) -> bool:
        """Whether the paired and the separate ratio differ by more than both intervals."""
        if not self.ratio or not self.separate:
            return False
        return abs(self.ratio.log - self.separate.log) > self.ratio.half + self.separate.half

    def value(self, column: str) -> Any:
        """Return the value of a measured or derived column; None if it is not known."""
        return self.row.metrics[column] if column in self.row.metrics else getattr(self, column, None)


class Names:
    """Labels that tell the cases of one grid apart and leave out what is the same for all."""

    def __init__(self, cases: Sequence[CaseRecord]) -> None:
        self._labels = Labels(case.impl for case in cases)
        self._varying_settings = several(case.settings for case in cases)
        varied = varying(case.workload for case in cases)
        workloads: dict[str, list[Choice]] = {}
        for case in cases:
            workloads.setdefault(case.workload.name, []).append(case.workload)
        # By workload: the fields that vary over the grid, in the order of its class; and the others with their values.
        self.axes = {name: _axes(chosen, varied[name]) for name, chosen in workloads.items()}
        self.constants: dict[str, dict[str, Scalar]] = {
            name: {key: value for key, value in chosen[0].fields.items() if key not in varied[name]}
            for name, chosen in workloads.items()
        }

    def impl(self, case: CaseRecord) -> str:
        """Return ``compiled``, or ``compiled(mode=default)`` if the grid has several of that name."""
        return self._labels.label(case.impl)

    def value(self, line: Line, column: str) -> Any:
        """Return ``line.value(column)``, or the label for the column ``implementation``."""
        return self.impl(line.row.case) if column == "implementation" else line.value(column)

    def settings(self, case: CaseRecord) -> dict[str, Scalar]:
        """Return what varies over the grid beside workload and implementation, with its value in ``case``."""
        return {name: value for name, value in case.settings.items() if name in self._varying_settings}

    def problem(self, case: CaseRecord) -> dict[str, Scalar]:
        """Return everything that tells the problem of ``case`` from others of its workload."""
        return {name: case.workload.fields[name] for name in self.axes[case.workload.name]} | self.settings(case)

    def heading(self, case: CaseRecord) -> str:
        """Return the workload and what varies, without the implementation: ``gelu cols=1024 seed=1``."""
        return " ".join([case.workload.name, *(f"{name}={value}" for name, value in self.problem(case).items())])

    def case(self, case: CaseRecord) -> str:
        """Return the heading and the implementation: ``gelu cols=1024 seed=1 triton``."""
        return f"{self.heading(case)} {self.impl(case)}"


def _axes(chosen: Sequence[Choice], varied: set[str]) -> list[str]:
    """Return the ``varied`` fields without copies of an earlier one, such as m, n and k of size."""
    series = {name: [choice.fields[name] for choice in chosen] for name in chosen[0].fields if name in varied}
    names = list(series)
    return [name for i, name in enumerate(names) if series[name] not in [series[earlier] for earlier in names[:i]]]


def lines(rows: Iterable[Row], baseline: str | None, rounds: Iterable[Comparison] = ()) -> list[Line]:
    """Return one line per case. Cases of a problem stand together; problems are in order of appearance.

    ``baseline``: label of the implementation that speed-ups are against; None: torch, else the first correct one.
    """
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(replace(row.case, replica=0).key, []).append(row)
    problems: dict[str, list[list[Row]]] = {}
    for replicas in cases.values():
        problems.setdefault(replicas[0].case.problem, []).append(replicas)
    compared = {key: one for one in rounds for key in one.batches_us}
    found = [line for problem in problems.values() for line in _problem(problem, baseline, compared)]
    words = iter(statistics.words([line.ratio for line in found if line.ratio]))
    return [replace(line, vs_baseline=next(words)) if line.ratio else line for line in found]


def _problem(cases: Sequence[list[Row]], baseline: str | None, compared: Mapping[str, Comparison]) -> list[Line]:
    """Return the lines of one problem; ``cases`` has the replicas of each case."""
    rows = [merged(replicas) for replicas in cases]
    base_index = _baseline(rows, baseline)
    base = None if base_index is None else rows[base_index]
    found = []
    for index, (row, replicas) in enumerate(zip(rows, cases, strict=True)):
        is_baseline = index == base_index
        comparable = is_baseline or (row.time_us is not None and _is_right(row))
        ratio = None
        if base_index is not None and comparable and not is_baseline:
            ratio = _ratio(replicas, cases[base_index], compared)
        found.append(
            Line(
                row=row,
                baseline=is_baseline,
                baseline_us=base.time_us if base and comparable else None,
                ratio=ratio,
                separate=_separate(row, base) if base and ratio and ratio.paired else None,
                err_ratio=_error(row, base) if base else None,
                replicas=len(replicas),
                between_pct=_between_pct(replicas),
            )
        )
    if fastest := _fastest(found):
        found[found.index(fastest)] = replace(fastest, fastest="yes")
    return found


def _is_right(row: Row) -> bool:
    return row.status != "wrong" and row.metrics.get("verdict") != "wrong"


def _baseline(rows: Sequence[Row], name: str | None) -> int | None:
    """Return the index of the case called ``name``; without a name, that of torch or of the first correct case."""
    timed = [index for index, row in enumerate(rows) if row.time_us is not None and (name or _is_right(row))]
    called = [index for index in timed if is_called(rows[index].case.impl, name or "torch")]
    return next(iter(called if called or name else timed), None)


def _ratio(replicas: Sequence[Row], base: Sequence[Row], compared: Mapping[str, Comparison]) -> Ratio | None:
    """Return the time of a case over the baseline's, from paired rounds if every process has some.

    Otherwise it comes from the separate times. It is None if these are from different GPUs or numbers of threads, as
    after a resume, since two GPUs of a kind differ by more than either interval shows.
    """
    base_keys = {row.case.replica: row.case.key for row in base}
    found = []
    for row in replicas:
        rounds, key, base_key = compared.get(row.case.key), row.case.key, base_keys.get(row.case.replica, "")
        if rounds and base_key in rounds.batches_us:
            batches = rounds.batches_us[key], rounds.batches_us[base_key]
            if min(map(min, batches)) > 0:  # a call that does nothing may read below 0, and has no ratio
                instruments = rounds.instruments[key], rounds.instruments[base_key]
                found.append(statistics.paired(*batches, pair_floors(*instruments), shared_us(*instruments)))
    if len(found) == max(len(replicas), len(base)):
        return statistics.pooled(found)
    return _separate(merged(replicas), merged(base)) if _devices(replicas) == _devices(base) else None


def _separate(row: Row, base: Row) -> Ratio | None:
    """Return the ratio of two separate times; None if one of them is 0 or has no interval."""
    intervals = [
        (each.time_us, float(percent) / 100)
        for each in (row, base)
        if each.time_us and (percent := each.metrics.get("interval_pct")) is not None
    ]
    return statistics.unpaired(*intervals) if len(intervals) == 2 else None


def _devices(rows: Sequence[Row]) -> set[Any]:
    """Return the GPUs that ``rows`` were timed on, or the numbers of CPU threads."""
    return {row.metrics.get("threads" if row.device == "cpu" else "gpu_uuid") for row in rows}


def _fastest(lines: Sequence[Line]) -> Line | None:
    """Return the fastest correct line, by speed-ups if all have one, since paired rounds are more exact than times."""
    right = [
        line
        for line in lines
        if line.row.status == "ok"
        and line.time_us
        and not line.row.case.debug
        and line.row.metrics.get("verdict") not in UNTRUE
    ]
    if all(line.speedup for line in right):
        return max(right, key=lambda line: line.speedup or 0.0, default=None)
    return min(right, key=lambda line: line.time_us or 0.0, default=None)


def _error(row: Row, base: Row) -> float | None:
    """Return the largest error over the baseline's."""
    error, base_error = row.metrics.get("max_abs_err"), base.metrics.get("max_abs_err")
    return float(error) / float(base_error) if error is not None and base_error else None


def merged(rows: Sequence[Row]) -> Row:
    """Return one row for the replicas of a case.

    It is a failed replica if there is one, else a wrong one, else the first; its time is the mean of all.
    """
    if len(rows) == 1:
        return rows[0]
    if untimed := [row for row in rows if row.time_us is None]:
        return next((row for row in untimed if row.status != "ok"), untimed[0])
    chosen, time = next((row for row in rows if row.status != "ok"), rows[0]), _mean_time(rows)
    metrics = {**chosen.metrics, **_scaled(rows, chosen), **time, **_verdict(rows, time["interval_pct"])}
    return replace(chosen, metrics=metrics)


def _scaled(rows: Sequence[Row], chosen: Row) -> dict[str, Scalar]:
    """Return the other figures that belong to the mean time: shares of the peak, number of samples, fastest sample."""
    mean = fmean(_times(rows))
    found: dict[str, Any] = {
        name: chosen.metrics[name] * (chosen.time_us or 0.0) / mean  # type: ignore[operator]
        for name in ("pct_of_measured_peak", "pct_datasheet")
        if mean and chosen.metrics.get(name)
    }
    combine: dict[str, Any] = {"samples": sum, "min_us": min}
    return found | {
        name: function(row.metrics[name] for row in rows)
        for name, function in combine.items()
        if all(name in row.metrics for row in rows)
    }


def _between_pct(rows: Sequence[Row]) -> float | None:
    """Return the standard deviation between processes in percent of the time; None for one process or a time of 0."""
    times = _times(rows)
    return 100 * stdev(times) / fmean(times) if len(times) > 1 and any(times) else None


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.time_us for row in rows if row.time_us is not None]


def _mean_time(rows: Sequence[Row]) -> dict[str, Scalar]:
    """Return the mean of the times with its 95 % interval.

    The instrument's uncertainty may be the same in all processes, so more of them do not reduce it.
    """
    times = _times(rows)
    mean, count = fmean(times), len(times)
    between = T_975[min(count - 1, max(T_975))] * stdev(times) / math.sqrt(count)
    percents: list[tuple[Any, Any]] = [
        (row.metrics.get("interval_pct") or 0.0, row.metrics.get("stat_pct") or 0.0) for row in rows
    ]
    sampling = mean * min(stat for _, stat in percents) / 100 / math.sqrt(count)
    instrument = mean * min(math.sqrt(max(0.0, whole**2 - stat**2)) for whole, stat in percents) / 100
    half = math.hypot(between, sampling, instrument)
    return {
        "gpu_us" if "gpu_us" in rows[0].metrics else "wall_us": mean,
        "low_us": max(0.0, mean - half),
        "high_us": mean + half,
        "interval_pct": 100 * half / mean if mean else None,
    }


def _verdict(rows: Sequence[Row], interval_pct: Any) -> dict[str, Scalar]:
    """Return the gravest verdict of all processes, or ``not_converged`` if they differ by more than was asked for.

    A verdict that this version does not know counts as the gravest.
    """
    words = [row.metrics.get("verdict", "ok") for row in rows]
    gravity = [GRAVITY.index(word) if word in GRAVITY else 0 for word in words]
    target = "target_cpu_pct" if rows[0].device == "cpu" else "target_pct"
    asked: Any = next((one.fields[target] for one in rows[0].case.measures if target in one.fields), None)
    if min(gravity) > GRAVITY.index("timer_limited") and interval_pct and asked and interval_pct > asked:
        why = f"the interval is +-{interval_pct:.1f} %, since {len(rows)} processes differ"
        return {"verdict": "not_converged", "verdict_reason": why}
    gravest = rows[gravity.index(min(gravity))]
    return {name: gravest.metrics[name] for name in ("verdict", "verdict_reason") if name in gravest.metrics}
