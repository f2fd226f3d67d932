"""Derive figures from rows: rates, speed-ups, the fastest case of each problem, and short names of cases.

A row holds what was measured. Everything here can be computed again from rows and paired rounds at any time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from runner.device import identity
from runner.experiment.case import CaseRecord, Choice, Labels, Scalar, called, several, varying
from runner.experiment.columns import DEVICE
from runner.experiment.results import Comparison, Row, interval
from runner.timing import statistics
from runner.timing.procedure import GRAVITY, UNTRUE, launch_bound
from runner.timing.statistics import BATCHES, Ratio, pair_floors, shared_us, t_975


@dataclass(frozen=True)
class Contradiction:
    """A speed-up from paired rounds that a reader of the two separate times would not expect."""

    over: CaseRecord  # the case that it is relative to
    speedup: float
    separate: float  # what the separate times would give


@dataclass(frozen=True)
class Line:
    """A case with its derived columns: see ``DERIVED`` of runner/experiment/columns.py."""

    row: Row  # the replicas merged into one
    tflops: float | None = None
    gbps: float | None = None
    replicas: int = 1
    between_pct: float | None = None
    baseline: bool = False
    err_ratio: float | None = None
    ratio: Ratio | None = None  # time over the baseline's, if both have an interval
    speedup: float | None = None  # None for a wrong result
    speedup_low: float | None = None
    speedup_high: float | None = None
    paired: bool | None = None
    contradiction: Contradiction | None = None
    vs_baseline: str | None = None
    fastest: Literal["yes", "tied", "no"] = "no"
    winner: bool = False  # the first of its problem, also if another is tied with it
    behind: Ratio | None = None  # time over the winner's, if it is correct and both have an interval
    vs_winner: str | None = None  # slower | same | unclear
    launch_bound: bool = False  # some case of its problem is: what a caller gets then matters beside the GPU time

    @property
    def time_us(self) -> float | None:
        """Time of one call in us."""
        return self.row.time_us

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
            name: {k: value for k, value in chosen[0].fields.items() if k not in varied[name] and value is not None}
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
        fields = case.workload.fields  # those of another version may lack one
        return {name: fields.get(name) for name in self.axes[case.workload.name]} | self.settings(case)

    def heading(self, case: CaseRecord) -> str:
        """Return the workload and what varies, without the implementation: ``gelu cols=1024 seed=1``."""
        return " ".join([case.workload.name, *(f"{name}={value}" for name, value in self.problem(case).items())])

    def case(self, case: CaseRecord) -> str:
        """Return the heading and the implementation: ``gelu cols=1024 seed=1 triton``."""
        return f"{self.heading(case)} {self.impl(case)}"


def _axes(chosen: Sequence[Choice], varied: set[str]) -> list[str]:
    """Return the ``varied`` fields without copies of an earlier one, such as m, n and k of size.

    A field that is null in some cases is also a copy of a later one, if it agrees with it in the others.
    """
    series = {name: [choice.fields.get(name) for choice in chosen] for name in chosen[0].fields if name in varied}

    def is_copy(place: int, mine: list[Scalar]) -> bool:
        others = [each for at, each in enumerate(series.values()) if at < place or (None in mine and None not in each)]
        return any(all(one in (None, other) for one, other in zip(mine, each, strict=True)) for each in others)

    return [name for place, (name, mine) in enumerate(series.items()) if not is_copy(place, mine)]


@dataclass(frozen=True)
class Run:
    """A run, as its folder holds it."""

    folder: Path
    rows: Sequence[Row]  # the last row of each case, in the order of the plan
    rounds: Sequence[Comparison]
    baseline: str | None  # its own setting
    columns: Sequence[str]  # those that its table shows; empty: the usual ones
    sessions: Sequence[Mapping[str, Any]]  # facts about the machine, the versions and the command, one per session
    unreadable: int  # records of its journal that are damaged or cut off
    title: str = ""  # the name of the run
    cases: Sequence[CaseRecord] = ()  # of its plan, and those of its rows
    question: str | None = None  # that an experiment asks
    conclusion: Sequence[Choice] = ()  # analyses that answer it, of runner.report.analyses

    @property
    def name(self) -> str:
        """``<date>/<time>-<name>``."""
        return "/".join(self.folder.resolve().parts[-2:])

    @property
    def environment(self) -> Mapping[str, Any]:
        """The facts of the last session; empty if they cannot be read."""
        return self.sessions[-1] if self.sessions else {}

    @property
    def commits(self) -> str:
        """The commits that its rows are from, short and in order, with ``*`` for changed files; "" if none is known.

        Rows of older runs have none: then it is the commit of this project.
        """
        from runner.store.fingerprint import commits

        if own := commits([row.metrics for row in self.rows]):
            return own
        return commits(self.sessions)

    @property
    def commit(self) -> str | None:
        """The commits of this project, in order and without repetition; None if none is known."""
        found = [session.get("commit") for session in self.sessions]
        return ", ".join(dict.fromkeys(commit for commit in found if commit and isinstance(commit, str))) or None

    @cached_property
    def lines(self) -> list[Line]:
        """One line per case, against the run's own baseline, with the properties of its device that are asked for."""
        rows = self.rows
        if asked := [name for name in self.columns if name in DEVICE]:
            known = [identity.device_columns(self.worker(row)) for row in rows]
            rows = [
                replace(row, metrics={**row.metrics, **{name: facts[name] for name in asked if name in facts}})
                for row, facts in zip(rows, known, strict=True)
            ]
        return lines(rows, self.baseline, self.rounds)

    def worker(self, row: Row) -> Mapping[str, Any]:
        """Return the facts about the device of ``row``, by the last session that knows it; empty if none does."""
        for session in reversed(self.sessions):
            workers = session.get("workers")
            own = workers.get(row.metrics.get("gpu_uuid")) if isinstance(workers, Mapping) else None
            for facts in (own, session.get("worker")):
                gpu = facts.get("gpu") if isinstance(facts, Mapping) else None
                if isinstance(facts, Mapping) and row.device == (gpu["name"] if isinstance(gpu, Mapping) else "cpu"):
                    return facts
        return {}

    @cached_property
    def names(self) -> Names:
        """Labels of its cases."""
        return Names(self.cases or [row.case for row in self.rows])

    def rows_of(self, lines: Iterable[Line]) -> list[Row]:
        """Return the rows behind ``lines``, of which each may have several replicas."""
        wanted = {(line.row.case.problem, line.row.case.impl.text) for line in lines}
        return [row for row in self.rows if (row.case.problem, row.case.impl.text) in wanted]

    def against(self, baseline: str | None) -> Run:
        """Return the run with another baseline, or the same if that is None."""
        return self if baseline is None else replace(self, baseline=baseline)


def lines(rows: Iterable[Row], baseline: str | None, rounds: Iterable[Comparison] = ()) -> list[Line]:
    """Return one line per case. Cases of a problem stand together; problems are in order of appearance.

    ``baseline``: label of the implementation that speed-ups are against; None: torch, else the first correct one.
    """
    problems: dict[str, list[list[Row]]] = {}
    for some in replicas(rows).values():
        problems.setdefault(some[0].case.problem, []).append(some)
    rounds = list(rounds)
    compared, dropped = by_key(rounds), {key for one in rounds for key in one.dropped}
    found = [_Problem(problem, baseline, compared, dropped) for problem in problems.values()]
    ratios = [ratio for problem in found for ratio in problem.ratios.values()]
    words = iter(statistics.words(ratios) if ratios else ())  # all comparisons of the table together
    return [line for problem in found for line in problem.judged(dict(zip(problem.ratios, words, strict=False)))]


def replicas(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each case, one per replica, by ``CaseRecord.shared_key``."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case.shared_key, []).append(row)
    return found


def by_key(rounds: Iterable[Comparison]) -> dict[str, Comparison]:
    """Return the paired rounds in which each case was measured, by its key."""
    return {key: one for one in rounds for key in one.batches_us}


class _Problem:
    """The cases of one problem, compared with the baseline and with the fastest; ``cases`` has the replicas of each.

    ``dropped``: keys of cases that a race has shown to be slower.
    """

    def __init__(
        self,
        cases: Sequence[list[Row]],
        baseline: str | None,
        compared: Mapping[str, Comparison],
        dropped: Collection[str] = (),
    ) -> None:
        rows = [merged(replicas) for replicas in cases]
        self.base = base = _baseline(rows, baseline)
        bound = any(launch_bound(row.metrics) for row in rows if "pipelined_us" in row.metrics)
        self.lines = []
        for row, replicas in zip(rows, cases, strict=True):
            columns = {} if base is None else _against(row, rows[base], replicas, cases[base], compared)
            columns |= {"tflops": _rate(row, "flops", 1e-6), "gbps": _rate(row, "bytes_min", 1e-3)}
            columns |= {"between_pct": _between_pct(replicas), "launch_bound": bound}
            self.lines.append(Line(row, replicas=len(replicas), **columns))
        may = [may_win(row) and row.case.key not in dropped for row in rows]
        self.rivals = [place for place, wins in enumerate(may) if wins]
        self.best = best = _fastest(self.lines, self.rivals)
        # By the places of two cases: the time of the first over that of the second.
        self.ratios = {(i, base): line.ratio for i, line in enumerate(self.lines) if base is not None and line.ratio}
        others = [i for i in self.rivals if i != best and (best, i) not in self.ratios and (i, best) not in self.ratios]
        for i in others:
            if best is not None and (ratio := _ratio(cases[i], cases[best], compared)):
                self.ratios[i, best] = ratio

    def judged(self, words: Mapping[tuple[int, int], str]) -> list[Line]:
        """Return the lines with what follows from ``words``, the conclusions of ``ratios``."""
        base, best = self.base, self.best
        behind = {i for (i, j), word in words.items() if j == best and word == "slower"}
        behind |= {j for (i, j), word in words.items() if i == best and word == "faster"}
        ahead = [] if best is None else [i for i in self.rivals if i not in behind]
        fastest: Literal["yes", "tied"] = "tied" if ahead[1:] else "yes"
        found = []
        for i, line in enumerate(self.lines):
            pairs = [(i, j) for j in dict.fromkeys((base, best)) if j is not None and (i, j) in words]
            unexpected = (_contradiction(line.row, self.lines[j].row, self.ratios[i, j], words[i, j]) for _, j in pairs)
            ratio, vs_winner = self._behind(i, words)
            found.append(
                replace(
                    line,
                    vs_baseline=None if base is None else words.get((i, base)),
                    fastest=fastest if i in ahead else "no",
                    winner=i == best,
                    behind=ratio,
                    vs_winner=vs_winner,
                    contradiction=next(filter(None, unexpected), None),
                )
            )
        return found

    def _behind(self, place: int, words: Mapping[tuple[int, int], str]) -> tuple[Ratio | None, str | None]:
        """Return the ratio of the case at ``place`` to the fastest, and its conclusion; None, None without one."""
        if self.best is None or place == self.best or place not in self.rivals:
            return None, None
        if ratio := self.ratios.get((place, self.best)):
            return ratio, words.get((place, self.best))
        if ratio := self.ratios.get((self.best, place)):
            return replace(ratio, log=-ratio.log), OPPOSITE.get(words.get((self.best, place), ""))
        return None, None


OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unclear": "unclear"}
VISIBLE = math.log(1.05)  # a reader expects the speed-up to be as near as this to the ratio of the two times


def _contradiction(row: Row, other: Row, ratio: Ratio, word: str) -> Contradiction | None:
    """Return how ``ratio``, of which ``word`` is the conclusion, differs from the ratio of the two separate times."""
    time_us, other_us = row.time_us or 0.0, other.time_us or 0.0
    if not ratio.paired or min(time_us, other_us) <= 0:  # a call that does nothing may read below 0
        return None
    log, separate = math.log(time_us / other_us), separate_ratio(row, other)
    allowed = min(VISIBLE, ratio.half + separate.half) if separate else VISIBLE
    opposite = word in ("faster", "slower") and log * ratio.log < 0
    if abs(ratio.log - log) <= allowed and not opposite:
        return None
    return Contradiction(other.case, math.exp(-ratio.log), math.exp(-log))


def _against(
    row: Row, base: Row, replicas: Sequence[Row], base_replicas: Sequence[Row], compared: Mapping[str, Comparison]
) -> dict[str, Any]:
    """Return the columns that compare a case with the baseline."""
    error, base_error = row.metrics.get("max_abs_err"), base.metrics.get("max_abs_err")
    found: dict[str, Any] = {"baseline": row is base}
    found["err_ratio"] = float(error) / float(base_error) if error is not None and base_error else None
    time_us, base_us = row.time_us or 0.0, base.time_us or 0.0
    if row is base or min(time_us, base_us) <= 0 or not _is_right(row):
        return found | ({"speedup": 1.0} if row is base and row.time_us else {})
    if not (ratio := _ratio(replicas, base_replicas, compared)):
        return found | {"speedup": base_us / time_us}
    found |= {"ratio": ratio, "paired": ratio.paired, "speedup": math.exp(-ratio.log)}
    if math.isfinite(ratio.half):
        found["speedup_low"], found["speedup_high"] = (math.exp(half - ratio.log) for half in (-ratio.half, ratio.half))
    return found


def _rate(row: Row, column: str, scale: float) -> float | None:
    """Return ``column`` per microsecond, times ``scale``; None if it is 0, as the operations of a copy are."""
    amount = row.metrics.get(column)
    return float(amount) / row.time_us * scale if amount and row.time_us else None


def _is_right(row: Row) -> bool:
    return row.status != "wrong" and row.metrics.get("verdict") != "wrong"


def _is_correct(row: Row) -> bool:
    """Return whether the outputs were checked and are correct: those of ``impl=copy`` are not checked."""
    return row.status == "ok" and row.metrics.get("correct") is True


def _baseline(rows: Sequence[Row], name: str | None) -> int | None:
    """Return the index of the case called ``name``; without a name, that of torch or of the first correct case."""
    timed = [index for index, row in enumerate(rows) if row.time_us is not None and (name or _is_correct(row))]
    meant = [index for index in called([row.case.impl for row in rows], name or "torch") if index in timed]
    return next(iter(meant if meant or name else timed), None)


def _ratio(replicas: Sequence[Row], base: Sequence[Row], compared: Mapping[str, Comparison]) -> Ratio | None:
    """Return the time of a case over the baseline's, from paired rounds if every process has some.

    Otherwise it comes from the separate times. It is None if these are from different GPUs or numbers of threads, as
    after a resume, since two GPUs of a kind differ by more than either interval shows.
    """
    if found := ratio_in_rounds(replicas, base, compared):
        return found
    if _devices(replicas) != _devices(base):
        return None
    return separate_ratio(merged(replicas), merged(base), apart=max(map(_apart, (*replicas, *base))))


def ratio_in_rounds(replicas: Sequence[Row], base: Sequence[Row], compared: Mapping[str, Comparison]) -> Ratio | None:
    """Return the time of a case over the baseline's, from the paired rounds of each process; None if one has none.

    ``compared``: the rounds, by the keys of their cases.
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
    return statistics.pooled(found) if len(found) == max(len(replicas), len(base)) else None


def _apart(row: Row) -> float:
    """Return by how much another time of the same call may differ from this one, as a share.

    It is infinite if the time is uncertain itself, or if this machine has no certificate of ``verify``.
    """
    if not certain(row) or (percent := row.metrics.get("separate_pct")) is None:
        return math.inf
    return float(percent) / 100


def certain(row: Row) -> bool:
    """Return whether the time is neither contended nor of doubtful value, has converged, and is of ten samples."""
    figures: Mapping[str, Any] = row.metrics
    enough = figures.get("converged") is True and figures.get("samples", 0) >= BATCHES
    return enough and _gravity(row) > GRAVITY.index("contended")


def separate_ratio(row: Row, base: Row, apart: float = 0.0) -> Ratio | None:
    """Return the ratio of two separate times; None if one of them is 0 or below, or has no interval."""
    intervals = [
        (each.time_us, float(percent) / 100)
        for each in (row, base)
        if each.time_us and each.time_us > 0 and (percent := each.metrics.get("interval_pct")) is not None
    ]
    return statistics.unpaired(*intervals, apart=apart) if len(intervals) == 2 else None


def _devices(rows: Sequence[Row]) -> set[Any]:
    """Return the GPUs that ``rows`` were timed on, or the numbers of CPU threads."""
    return {row.metrics.get("threads" if row.device == "cpu" else "gpu_uuid") for row in rows}


def may_win(row: Row) -> bool:
    """Return whether the case of ``row`` can be the fastest: it is correct, and its time can be true."""
    timed = _is_correct(row) and row.time_us is not None
    return timed and not row.case.debug and row.metrics.get("verdict") not in UNTRUE


def _fastest(lines: Sequence[Line], rivals: Sequence[int]) -> int | None:
    """Return the fastest of ``rivals``, by speed-ups if all have one, since paired rounds are more exact than times.

    A time of 0, which cannot be told from that of an empty call, is not ranked.
    """
    ranked = [place for place in rivals if lines[place].time_us]
    if all(lines[place].speedup for place in ranked):
        return max(ranked, key=lambda place: lines[place].speedup or 0.0, default=None)
    return min(ranked, key=lambda place: lines[place].time_us or 0.0, default=None)


def merged(rows: Sequence[Row]) -> Row:
    """Return one row for the replicas of a case.

    It is a failed replica if there is one, else a wrong one, else the first; its time is the mean of all.
    """
    if len(rows) == 1:
        return rows[0]
    if untimed := [row for row in rows if row.time_us is None]:
        return next((row for row in untimed if row.status != "ok"), untimed[0])
    chosen = next((row for row in rows if row.status != "ok"), rows[0])
    mean, half = fmean(_times(rows)), _half_interval(rows)
    metrics: dict[str, Any] = dict(chosen.metrics)
    for name in ("pct_of_measured_peak", "pct_datasheet"):
        if mean and metrics.get(name):
            metrics[name] *= (chosen.time_us or 0.0) / mean
    combined: dict[str, Any] = {"samples": sum, "min_us": min}
    for name, combine in combined.items():
        if all(name in row.metrics for row in rows):
            metrics[name] = combine(row.metrics[name] for row in rows)
    metrics["gpu_us" if "gpu_us" in metrics else "wall_us"] = mean
    metrics |= {"low_us": max(0.0, mean - half), "high_us": mean + half}
    metrics["interval_pct"] = 100 * half / mean if mean else None
    return replace(chosen, metrics=metrics | _verdict(rows, metrics["interval_pct"]))


def _times(rows: Sequence[Row]) -> list[float]:
    return [row.time_us for row in rows if row.time_us is not None]


def _between_pct(rows: Sequence[Row]) -> float | None:
    """Return the standard deviation between processes in percent of the time; None for one process or a time of 0."""
    times = _times(rows)
    return 100 * stdev(times) / fmean(times) if len(times) > 1 and any(times) else None


def _half_interval(rows: Sequence[Row]) -> float:
    """Return half the 95 % interval of the mean in us.

    The instrument's uncertainty may be the same in all processes, so more of them do not reduce it.
    """
    times = _times(rows)
    mean, count = fmean(times), len(times)
    percents: list[tuple[Any, Any]] = [
        (row.metrics.get("interval_pct") or 0.0, row.metrics.get("stat_pct") or 0.0) for row in rows
    ]
    between = t_975(count - 1) * stdev(times) / math.sqrt(count)
    sampling = mean * min(stat for _, stat in percents) / 100 / math.sqrt(count)
    instrument = mean * min(math.sqrt(max(0.0, whole**2 - stat**2)) for whole, stat in percents) / 100
    return math.hypot(between, sampling, instrument)


def _verdict(rows: Sequence[Row], interval_pct: Any) -> dict[str, Scalar]:
    """Return the gravest verdict of all processes, or ``not_converged`` if they differ by more than was asked for."""
    gravity = list(map(_gravity, rows))
    target = "target_cpu_pct" if rows[0].device == "cpu" else "target_pct"
    asked: Any = next((one.fields[target] for one in rows[0].case.measures if target in one.fields), None)
    if min(gravity) > GRAVITY.index("timer_limited") and interval_pct and asked and interval_pct > asked:
        why = f"the interval is {interval(interval_pct, '+-')}, since {len(rows)} processes differ"
        return {"verdict": "not_converged", "verdict_reason": why}
    gravest = rows[gravity.index(min(gravity))]
    return {name: gravest.metrics[name] for name in ("verdict", "verdict_reason") if name in gravest.metrics}


def _gravity(row: Row) -> int:
    """Return the place of the verdict in ``GRAVITY``. One that this version does not know counts as the gravest."""
    word = row.metrics.get("verdict", "ok")
    return GRAVITY.index(word) if word in GRAVITY else 0
