"""A figure of the same case over past runs and their commits, with its change points."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..measure.columns import check_columns, column_of
from ..records.bad_input import BadInput
from ..records.columns import DERIVED
from ..records.figures import counted, is_number
from ..records.row import Row
from ..records.untrusted import mapping
from ..store import journal, run_folder
from ..store.provenance import commits
from . import select
from .change_points import TIME, Point, Series, with_change_points
from .flat import case_fields
from .lines import derive_lines
from .matching import MatchedCase, match_key, matched_cases, typed
from .names import Names
from .notes import reason_of
from .replicas import merge_replicas
from .validity import verdict


@dataclass(frozen=True)
class History:
    """All series that were asked for, and what could not be read."""

    series: Sequence[Series]
    messages: Sequence[str]

    @cached_property
    def names(self) -> Names:
        """Labels of the cases."""
        return Names([each.case for each in self.series])

    def heading(self, series: Series) -> str:
        """Return the label of ``series``: ``gelu cols=1024 triton on NVIDIA H200``."""
        return f"{self.names.case(series.case)} on {series.device}"


def read_history(output_dir: str, conditions: Sequence[str], column: str = TIME) -> History:
    """Return the series of ``column`` in all runs under ``output_dir`` that fulfil ``conditions``.

    ``conditions`` are as for ``show --where``: ``workload=gelu``, ``cols=256,1024``, ``device=cpu``. Raises BadInput if
    there is no such run, or if the column or a name in a condition is unknown.
    """
    if not (folders := run_folder.run_folders(output_dir)):
        raise BadInput(f"{output_dir}: there is no run; measure something first, or give output_dir=...")
    every, messages = _read(folders)
    if not every:
        remedy = "measure something first, or give output_dir=..."
        raise BadInput("; ".join([f"{output_dir}: no run there has a case to show", *(messages or [remedy])]))
    chosen = _fulfilling(every, conditions) if conditions else every
    _check(column, {name for runs in chosen.values() for _, case in runs for row in case.rows for name in row.metrics})
    series = []
    for key, runs in chosen.items():
        points = [_point(folder, case.rows, column) for folder, case in runs]
        if any(point.value is not None for point in points):
            series.append(Series(runs[-1][1].case.with_settings(device="auto"), key[-1], column, points))
    if not series:
        row = next(case.rows[-1] for runs in reversed(chosen.values()) for _, case in runs[-1:])
        reason = "" if row.status == "ok" else f"; the newest is {verdict(row)}: {reason_of(row)}"
        raise BadInput(f"{' '.join(conditions) or column}: no run has a figure for {column}{reason}")
    return History(with_change_points(series), messages)


_Key = tuple[Any, ...]  # equal for points of one series; the device is the last
_Runs = dict[_Key, list[tuple[Path, MatchedCase]]]  # the runs of each series, with its case


def _fulfilling(series: _Runs, conditions: Sequence[str]) -> _Runs:
    """Return the runs whose rows fulfil ``conditions``. Raises BadInput if there are none."""
    points = [(key, run) for key, runs in series.items() for run in runs]
    chosen: _Runs = {}
    for place in select.where([_record(case.rows[0]) for _, (_, case) in points], conditions, option=""):
        key, run = points[place]
        chosen.setdefault(key, []).append(run)
    return chosen


def _record(row: Row) -> dict[str, Any]:
    """Return the values that conditions test, by the names of rows.csv."""
    fields = case_fields(replace(row.case, impl=typed(row.case.impl)))
    return {**row.metrics, **fields, **row.case.flat_settings, "device": row.device, "status": row.status}


def _check(column: str, measured: set[str]) -> None:
    """Raise BadInput unless ``column`` is a known one that one case has by itself."""
    check_columns([column], measured)
    if column in DERIVED and DERIVED[column].compares:
        raise BadInput(f"columns={column}: it compares cases of one run; give a column of a case, such as {TIME}")


def _read(folders: Iterable[Path]) -> tuple[_Runs, list[str]]:
    """Return the runs of each series, and what was left out."""
    found: dict[Path, list[Row]] = {}
    messages, unreadable = list[str](), 0
    for folder in folders:
        try:
            contents = journal.load(folder)
        except BadInput as error:
            messages.append(f"left out: {error}")
            continue
        unreadable += contents.unreadable
        found[folder] = [row for row in contents.rows.values() if row.device or row.time_us is not None]
    runs: _Runs = {}
    for folder, cases in zip(found, matched_cases([*found.values()]), strict=True):
        cpu = _cpu(folder) if any(case.rows[0].device == "cpu" for case in cases) else ""
        for case in cases:
            device, threads = case.rows[0].device, case.rows[0].metrics.get("threads")
            on_cpu = cpu + (f", {counted(threads, 'thread')}" if threads else "")
            key = *match_key(case.case), on_cpu if device == "cpu" else device
            runs.setdefault(key, []).append((folder, case))
    messages += [f"left out: records that are damaged or cut off: {unreadable}"] if unreadable else []
    return runs, messages


def _cpu(folder: Path) -> str:
    """Return the name of the CPU that the run in ``folder`` was made with; "cpu" if it is not known."""
    names = (mapping(facts.get("worker")).get("cpu") for facts in reversed(run_folder.earlier_sessions(folder)))
    return str(next(filter(None, names), "cpu"))


def _point(folder: Path, rows: Sequence[Row], column: str) -> Point:
    """Return the point of the run in ``folder``."""
    row = merge_replicas(rows)
    value: Any = row.time_us if column == TIME else row.metrics.get(column)
    if column in DERIVED and column != TIME:
        value = derive_lines(rows, None)[0].value(column)
    number = float(value) if is_number(value) else None
    percent: Any = row.metrics.get(column_of(column).interval)
    return Point("/".join(folder.parts[-2:]), rows, row, commits([row.metrics for row in rows]), number, percent)
