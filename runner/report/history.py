"""A figure of the same case over past runs and their commits, and the runs from which it is different for good.

A series is one case on one kind of device. It changes for good at a run if all runs from there on differ from all runs
before by more than two runs of the same code do. How much that is comes from replicas, from what ``verify`` has
measured, or from how runs of one commit differ.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import median, variance
from typing import Any, Literal

import orjson

from runner.experiment.case import CaseRecord, Choice, Scalar
from runner.experiment.columns import DERIVED, Column
from runner.experiment.results import Row
from runner.experiment.schema import UNREADABLE, BadInput
from runner.measure import check_columns, known_columns
from runner.report import compare, derive, formats, past, select
from runner.report.derive import Names
from runner.store import journal, run_folder
from runner.store.fingerprint import commits, is_version
from runner.timing import statistics
from runner.timing.statistics import T_975, Ratio, t_975

TIME = "time_us"
TIMES = (TIME, "gpu_us", "wall_us")  # columns whose spread replicas and verify tell
PERCENTS = {  # by column, where half the width of its interval is
    **dict.fromkeys((*TIMES, "tflops", "gbps"), "interval_pct"),
    **{f"{name}_us": f"{name}_pct" for name in ("latency", "host", "pipelined")},
}
OF_ONE_CASE = (TIME, "tflops", "gbps", "between_pct", "replicas")  # derived columns that need no other case
FEWEST = 2  # degrees of freedom of the scatter between runs of one commit

Source = Literal["replicas", "verify", "runs of one commit"]


@dataclass(frozen=True)
class Point:
    """The case in one run."""

    run: str  # ``<date>/<time>-<name>``
    rows: Sequence[Row]  # of its replicas
    row: Row  # the replicas merged into one
    commit: str  # short, ``*`` behind it if its files differed; "" if it is not known
    value: float | None
    percent: float | None  # half the width of the value's 95 % interval, relative to it

    @property
    def when(self) -> str:
        """Date and time: ``2025-01-31 12:00:05``."""
        date, _, rest = self.run.partition("/")
        return f"{date} {rest[:8].replace('-', ':')}"

    @cached_property
    def log(self) -> float | None:
        """The logarithm of the value; None where it cannot be judged."""
        return math.log(self.value) if self.value and self.value > 0 and not self.doubt else None

    @cached_property
    def doubt(self) -> str:
        """Why the value cannot be judged; "" if it can."""
        return "" if self.row.status == "ok" and derive.certain(self.row) else "uncertain"

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Half the width of its interval and what ``verify`` says, as shares; infinite if that is not known."""
        apart = [row.metrics.get("separate_pct") for row in self.rows]
        known = [float(percent) / 100 for percent in apart if percent is not None]
        return (self.percent or 0.0) / 100, max(known) if len(known) == len(apart) else math.inf


@dataclass(frozen=True)
class Change:
    """The point from which a series is different for good."""

    place: int  # of the first point of the new level
    factor: float  # the median from there on over the median before, each up to the next change
    source: Source
    also: str  # what else is different at that point


@dataclass(frozen=True)
class Series:
    """The same case on one kind of device, the oldest run first."""

    case: CaseRecord  # of the newest run
    device: str
    column: str
    points: Sequence[Point]
    changes: Sequence[Change] = ()
    note: str = ""  # why no change can be marked

    @property
    def word(self) -> Column:
        """Unit and meaning of the column."""
        return {**known_columns(), **DERIVED}.get(self.column, Column("", ""))

    def verdict(self, change: Change) -> str:
        """Return ``faster: 0.84x the time``, or ``higher: 1.20x`` for a column that is no time."""
        if self.word.unit == "us":
            return f"{'faster' if change.factor < 1 else 'slower'}: {change.factor:.2f}x the time"
        return f"{'lower' if change.factor < 1 else 'higher'}: {change.factor:.2f}x"


@dataclass(frozen=True)
class History:
    """All series that were asked for, and what could not be read."""

    series: Sequence[Series]
    messages: Sequence[str]

    @cached_property
    def names(self) -> Names:
        """Labels of the cases."""
        return Names([one.case for one in self.series])

    def heading(self, series: Series) -> str:
        """Return what tells ``series`` from the others: ``gelu cols=1024 triton on NVIDIA H200``."""
        return f"{self.names.case(series.case)} on {series.device}"


def read(output_dir: str, conditions: Sequence[str], column: str = TIME) -> History:
    """Return the series of ``column`` in all runs under ``output_dir`` that fulfil ``conditions``.

    ``conditions`` are as for ``show --where``: ``workload=gelu``, ``cols=256,1024``, ``device=cpu``. Raises BadInput if
    there is no such run, or if the column or a name in a condition is unknown.
    """
    if not (folders := past.folders(output_dir)):
        raise BadInput(f"{output_dir}: there is no run; measure something first, or give output_dir=...")
    reader = _Reader(_wanted(conditions))
    gc.disable()  # it would walk thousands of new rows again and again
    try:
        for folder in folders:
            reader.read(folder)
    finally:
        gc.enable()
    keys = list(reader.found)
    if not keys:
        asked = " ".join(conditions)
        raise BadInput(f"{asked}: in none of the {len(folders)} runs under {output_dir}; there is {_there(folders)}")
    records = [_record(reader.found[key][-1][1][0]) for key in keys]
    try:
        places = select.where(records, conditions) if conditions else range(len(keys))
    except BadInput as error:
        raise BadInput(str(error).replace("--where ", "")) from None
    chosen = [(keys[place][-1], reader.found[keys[place]]) for place in places]
    _check(column, {name for _, runs in chosen for _, rows in runs for row in rows for name in row.metrics})
    points = [(device, [reader.point(folder, rows, column) for folder, rows in runs]) for device, runs in chosen]
    some = [(device, each) for device, each in points if any(point.value is not None for point in each)]
    if not some:
        raise BadInput(f"{' '.join(conditions)}: no run has a figure for {column}")
    cases = [_reduced(each[-1].row.case, each[-1].row.device) for _, each in some]
    full = compare.whole(cases)
    series = [Series(full(case), device, column, each) for case, (device, each) in zip(cases, some, strict=True)]
    return History(judged(series), reader.messages())


def _wanted(conditions: Iterable[str]) -> list[list[bytes]]:
    """Return texts of which each record that fulfils ``conditions`` on workload and implementation has one, of each."""
    given = (condition.partition("=") for condition in conditions)
    return [
        [b'"name":' + orjson.dumps(word) for word in values.split(",")]
        for name, _, values in given
        if name in ("workload", "impl")
    ]


def _there(folders: Iterable[Path]) -> str:
    """Return the workloads and implementations of the plans in ``folders``: ``gelu (torch, triton), mlp (torch)``."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        with suppress(OSError, ValueError):
            for case in run_folder.read_cases(folder):
                found.setdefault(case.workload.name, set()).add(case.impl.name)
    return ", ".join(f"{name} ({', '.join(sorted(impls))})" for name, impls in sorted(found.items())) or "nothing"


def _record(row: Row) -> dict[str, Any]:
    """Return what conditions are about, by the names of rows.csv."""
    case = row.case
    return {
        **formats.case_fields(replace(case, impl=compare.typed(case.impl))),
        **case.settings,
        "device": row.device,
    }


def _check(column: str, measured: set[str]) -> None:
    """Raise BadInput unless ``column`` is a known one that one case has by itself."""
    check_columns([column], measured)
    if column in DERIVED and column not in OF_ONE_CASE:
        raise BadInput(f"--column {column}: it compares cases of one run; give a column of a case, such as {TIME}")


_Key = tuple[Any, ...]  # equal for points of one series; the device is the last


class _Reader:
    """Reads those rows of many runs that have a text of each list in ``wanted``."""

    def __init__(self, wanted: Sequence[Sequence[bytes]]) -> None:
        self.found: dict[_Key, list[tuple[Path, list[Row]]]] = {}  # the runs of each series, with the rows of its case
        self._wanted = wanted
        self._messages: list[str] = []
        self._unreadable = 0
        self._cases: dict[bytes, CaseRecord] = {}  # by their JSON: most runs have the same ones
        self._keys: dict[tuple[str, str], _Key] = {}  # by the key of a case and the device
        self._commits: dict[tuple[tuple[Scalar, ...], ...], str] = {}
        self._sessions: dict[Path, list[dict[str, Any]]] = {}

    def messages(self) -> list[str]:
        """Return what was left out."""
        damaged = f"records that are damaged, cut off or of another version: {self._unreadable}"
        return [f"left out: {text}" for text in (*self._messages, *([damaged] if self._unreadable else []))]

    def read(self, folder: Path) -> None:
        """Add the rows of the run in ``folder``."""
        if not self._has(folder / run_folder.PLAN):
            return
        try:
            rows = self._rows(folder)
        except (OSError, BadInput) as error:
            self._messages.append(f"{folder}: {getattr(error, 'strerror', None) or error}")
            return
        replicas: dict[str, tuple[_Key, list[Row]]] = {}
        for row in rows:
            case, device = row.case, self._device(folder, row)
            if (case.key, device) not in self._keys:
                self._keys[case.key, device] = (*compare.match_key(_reduced(case, row.device)), device)
            replicas.setdefault(case.shared_key, (self._keys[case.key, device], []))[1].append(row)
        for key, some in replicas.values():
            self.found.setdefault(key, []).append((folder, some))

    def _has(self, path: Path) -> bool:
        """Return whether a plan may have a case that is wanted."""
        try:
            with open(path, "rb", opener=journal.no_link) as file:
                text = file.read()
        except OSError:
            return True  # a journal alone
        return all(any(word in text for word in words) for words in self._wanted)

    def _rows(self, folder: Path) -> list[Row]:
        """Return the last row of each wanted case. Raises OSError, and BadInput for a newer format."""
        contents = journal.Contents()
        with open(folder / journal.NAME, "rb", opener=journal.no_link) as file:
            for line in file:
                is_row = line.startswith(b'{"record":"row"')
                if not is_row and line.startswith((b'{"record":"start"', b'{"record":"rounds"', b'{"record":"stop')):
                    continue
                if is_row and not all(any(word in line for word in words) for words in self._wanted):
                    continue
                try:
                    record = orjson.loads(line)
                    if is_row:
                        contents.add_row(Row.from_record(record, self._case(record["case"])))
                    else:
                        contents.read(record)
                except UNREADABLE:
                    self._unreadable += 1
        return [row for row in contents.rows.values() if row.device or row.time_us is not None]

    def _case(self, record: object) -> CaseRecord:
        text = orjson.dumps(record)
        if text not in self._cases:
            self._cases[text] = CaseRecord.from_record(record)
        return self._cases[text]

    def _device(self, folder: Path, row: Row) -> str:
        """Return the name of the GPU, or of the CPU and its number of threads."""
        if row.device != "cpu":
            return row.device
        workers = [facts.get("worker") for facts in reversed(self.sessions(folder))]
        name = next((worker["cpu"] for worker in workers if isinstance(worker, Mapping) and worker.get("cpu")), None)
        threads = row.metrics.get("threads")
        return f"{name or 'cpu'}, {threads} thread{'s' * (threads != 1)}" if threads else str(name or "cpu")

    def sessions(self, folder: Path) -> list[dict[str, Any]]:
        """Return the facts of each session of a run."""
        if folder not in self._sessions:
            self._sessions[folder] = run_folder.earlier_sessions(folder)
        return self._sessions[folder]

    def point(self, folder: Path, rows: Sequence[Row], column: str) -> Point:
        """Return the point of the run in ``folder``."""
        row = derive.merged(rows)
        value: Any = row.time_us if column == TIME else row.metrics.get(column)
        if column in DERIVED and column != TIME:
            value = derive.lines(rows, None)[0].value(column)
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        percent: Any = row.metrics.get(PERCENTS.get(column, ""))
        commit = self._commit(rows) or commits(self.sessions(folder))
        return Point("/".join(folder.parts[-2:]), rows, row, commit, number, percent)

    def _commit(self, rows: Sequence[Row]) -> str:
        """Return the commits of ``rows``. Most of thousands of rows have those of others."""
        facts = tuple(tuple(row.metrics.get(name) for name in ("repository", "commit", "dirty")) for row in rows)
        if facts not in self._commits:
            self._commits[facts] = commits([row.metrics for row in rows])
        return self._commits[facts]


def _reduced(case: CaseRecord, device: str) -> CaseRecord:
    """Return ``case`` without what may differ within a series: what only says how exactly to measure, the commit."""
    fields = [(one.name, {k: v for k, v in one.fields.items() if k in compare.MEASURED}) for one in case.measures]
    measures = tuple(Choice(name, {} if device == "cpu" else some) for name, some in fields if some)
    return replace(case, impl=compare.typed(case.impl), measures=measures, device="auto", time_wrong=False, replica=0)


# --- changes ---


def judged(series: Sequence[Series]) -> list[Series]:
    """Return ``series`` with their changes, corrected for the number of series and of places at which one may be."""
    tried = [dict(_steps(one)) for one in series]
    nothing = Ratio(0.0, math.inf, max(T_975), paired=False)
    ratios = [ratio for steps in tried for ratio in ([ratio for ratio, _ in steps.values()] or [nothing])]
    words = iter(statistics.words(ratios) if ratios else ())
    found = []
    for one, steps in zip(series, tried, strict=True):
        said = [next(words) for _ in steps or [None]]
        places = [place for place, word in zip(steps, said, strict=False) if word in ("faster", "slower")]
        bounds = [0, *places, len(one.points)]
        changes = [
            Change(place, _level(one, place, after) / _level(one, before, place), steps[place][1], _also(one, place))
            for before, place, after in zip(bounds, places, bounds[2:], strict=False)
        ]
        found.append(replace(one, changes=changes, note=_note(one)))
    return found


def _level(series: Series, start: int, end: int) -> float:
    return math.exp(median(point.log for point in series.points[start:end] if point.log is not None))


def _steps(series: Series) -> Iterator[tuple[int, tuple[Ratio, Source]]]:
    """Yield the places from which a series is on one side of all that was before, by more than the spread.

    With each comes the weakest ratio of a later point over an earlier one, and where its spread comes from.
    """
    places = [place for place, point in enumerate(series.points) if point.log is not None]
    logs = [series.points[place].log or 0.0 for place in places]
    scatter = _scatter([series.points[place] for place in places])
    highest, lowest = (list(accumulate(logs, pick)) for pick in (max, min))  # up to each place, and from there on
    highest_after, lowest_after = (list(accumulate(reversed(logs), pick))[::-1] for pick in (max, min))
    for at in range(1, len(places)):
        sign = (lowest_after[at] > highest[at - 1]) - (highest_after[at] < lowest[at - 1])
        if not sign:
            continue
        fronts = [
            _front([series.points[place] for place in some], side)
            for some, side in ((places[:at], -sign), (places[at:], sign))
        ]
        found = [_ratio(first, other, scatter, series.column) for first in fronts[0] for other in fronts[1]]
        ratios = [pair for pair in found if pair is not None]
        if len(ratios) == len(found) and all(ratio.word in ("faster", "slower") for ratio, _ in ratios):
            yield places[at], max(ratios, key=lambda pair: pair[0].chance)


def _front(points: Sequence[Point], sign: int) -> list[Point]:
    """Return the points that decide: those to which no other is nearer to the other side and also less certain."""
    front: list[Point] = []
    widest = [-1.0, -1.0, -1.0]
    for point in sorted(points, key=lambda point: sign * (point.log or 0.0)):
        spread = [*point.spread, -float(len(point.rows))]
        if any(mine > most for mine, most in zip(spread, widest, strict=True)) or not front:
            front.append(point)
            widest = list(map(max, spread, widest)) if front[1:] else spread
    return front


def _scatter(points: Sequence[Point]) -> tuple[float, int] | None:
    """Return the standard deviation of the logarithm between runs of one commit, and its degrees of freedom."""
    groups: dict[str, list[float]] = {}
    for point in points:
        if point.commit and not point.commit.endswith("*"):
            groups.setdefault(point.commit, []).append(point.log or 0.0)
    some = [logs for logs in groups.values() if logs[1:]]
    freedom = sum(len(logs) - 1 for logs in some)
    if freedom < FEWEST:
        return None
    return math.sqrt(sum(variance(logs) * (len(logs) - 1) for logs in some) / freedom), freedom


def _ratio(first: Point, other: Point, scatter: tuple[float, int] | None, column: str) -> tuple[Ratio, Source] | None:
    """Return the value of ``other`` over that of ``first``, and where its spread comes from; None without one."""
    if column in TIMES:
        if min(len(first.rows), len(other.rows)) >= compare.FEWEST_REPLICAS:
            return compare.between_processes(first.rows, other.rows), "replicas"
        apart = max(first.spread[1], other.spread[1])
        if math.isfinite(apart) and (ratio := derive.separate_ratio(other.row, first.row, apart)):
            return ratio, "verify"
    if scatter is None:
        return None
    deviation, freedom = scatter
    between = t_975(freedom) * deviation * math.sqrt(2)
    half = max(between, math.hypot(first.spread[0], other.spread[0]))
    log = (other.log or 0.0) - (first.log or 0.0)
    return Ratio(log, half, min(freedom, max(T_975)), paired=False), "runs of one commit"


def _note(series: Series) -> str:
    """Return why no change can be found; "" if one could be."""
    judged = [point for point in series.points if point.log is not None]
    if len(judged) < 2:
        few = "one run" if len(series.points) == 1 else f"{len(judged)} of {len(series.points)} runs can be judged"
        return f"{few}: nothing to compare"
    if _ratio(judged[0], judged[-1], _scatter(judged), series.column) is None:
        known = f"{compare.FEWEST_REPLICAS} replicas, a certificate of verify, or several runs of one commit"
        return f"no change can be marked: how much two runs differ is not known; it takes {known}"
    return ""


def _also(series: Series, place: int) -> str:
    """Return what else is different from the point at ``place`` on, or that the sources are the same."""
    before, after = series.points[place - 1].row, series.points[place].row
    every = sorted({*before.fingerprint, *after.fingerprint})
    versions = [
        f"{name} {before.fingerprint.get(name)} → {after.fingerprint.get(name)}"
        for name in filter(is_version, every)
        if before.fingerprint.get(name) != after.fingerprint.get(name)
    ]
    gpus = [row.metrics.get("gpu_uuid") for row in (before, after)]
    found = [*versions, *(["another GPU of the kind"] if None not in gpus and gpus[0] != gpus[1] else [])]
    names = [name for name in every if not is_version(name)]
    changed = [name for name in names if before.fingerprint.get(name) != after.fingerprint.get(name)]
    if changed:
        found.insert(0, f"{changed[0]}{f' and {len(changed) - 1} more' if changed[1:] else ''} changed")
    elif names:
        found.insert(0, "its sources are the same")
    return ", ".join(found)
