"""A figure of the same case over past runs and their commits, and its lasting changes.

A series is one case on one kind of device. It has a lasting change at a run if all runs from there on differ from all
runs before by more than two runs of the same code do. How much that is comes from replicas, from what ``verify`` has
measured, or from how runs of one commit differ.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from ..measure.columns import check_columns, column_of
from ..records.bad_input import BadInput
from ..records.case import CaseRecord
from ..records.columns import DERIVED
from ..records.figures import is_number
from ..records.grouping import grouped
from ..records.row import Row
from ..store import journal, run_folder
from ..store.provenance import commits
from . import select
from .change_points import TIME, Point, Series, with_change_points
from .flat import case_fields
from .lines import derive_lines
from .matching import match_key, reduced, typed
from .names import Names
from .notes import reason_of
from .past import run_folders
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
        """Return what tells ``series`` from the others: ``gelu cols=1024 triton on NVIDIA H200``."""
        return f"{self.names.case(series.case)} on {series.device}"


def read_history(output_dir: str, conditions: Sequence[str], column: str = TIME) -> History:
    """Return the series of ``column`` in all runs under ``output_dir`` that fulfil ``conditions``.

    ``conditions`` are as for ``show --where``: ``workload=gelu``, ``cols=256,1024``, ``device=cpu``. Raises BadInput if
    there is no such run, or if the column or a name in a condition is unknown.
    """
    if not (folders := run_folders(output_dir)):
        raise BadInput(f"{output_dir}: there is no run; measure something first, or give output_dir=...")
    reader = _Reader(_wanted(conditions), column_of(column).interval)
    gc.disable()  # it would walk thousands of new rows again and again
    try:
        for folder in folders:
            reader.read(folder)
    finally:
        gc.enable()
    given = " ".join(conditions) or column
    if not reader.runs:
        raise BadInput(f"{given}: in none of the {len(folders)} runs under {output_dir}; there is {_there(folders)}")
    chosen = _fulfilling(reader.runs, conditions) if conditions else reader.runs
    _check(column, {name for runs in chosen.values() for _, rows in runs for row in rows for name in row.metrics})
    series = []
    for key, runs in chosen.items():
        points = [reader.point(folder, rows, column) for folder, rows in runs]
        if any(point.value is not None for point in points):
            newest = points[-1].row
            series.append(Series(_of_series(newest.case, newest.device), key[-1], column, points))
    if not series:
        row = next(rows[-1] for runs in reversed(chosen.values()) for _, rows in runs[-1:])
        reason = "" if row.status == "ok" else f"; the newest is {verdict(row)}: {reason_of(row)}"
        raise BadInput(f"{given}: no run has a figure for {column}{reason}")
    return History(with_change_points(series), reader.messages())


_Key = tuple[Any, ...]  # equal for points of one series; the device is the last
_Runs = dict[_Key, list[tuple[Path, list[Row]]]]  # the runs of each series, with the rows of its case


def _fulfilling(series: _Runs, conditions: Sequence[str]) -> _Runs:
    """Return the runs whose cases fulfil ``conditions``. Raises BadInput if there are none."""
    kinds = {(rows[0].case.key, rows[0].device): rows[0] for runs in series.values() for _, rows in runs}
    try:
        places = {*select.where([_record(row) for row in kinds.values()], conditions)}
    except BadInput as error:
        raise BadInput(str(error).replace("--where ", "")) from None
    kept = {kind for place, kind in enumerate(kinds) if place in places}
    chosen = {
        key: [(folder, rows) for folder, rows in runs if (rows[0].case.key, rows[0].device) in kept]
        for key, runs in series.items()
    }
    return {key: runs for key, runs in chosen.items() if runs}


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
    cases: list[CaseRecord] = []
    for folder in folders:
        with suppress(OSError, ValueError):
            cases += run_folder.read_plan(folder).cases
    workloads = grouped(cases, lambda case: case.workload.name)
    impls = {name: sorted({case.impl.name for case in members}) for name, members in sorted(workloads.items())}
    return ", ".join(f"{name} ({', '.join(labels)})" for name, labels in impls.items()) or "nothing"


def _record(row: Row) -> dict[str, Any]:
    """Return what conditions are about, by the names of rows.csv."""
    fields = case_fields(replace(row.case, impl=typed(row.case.impl)))
    return {**fields, **row.case.flat_settings, "device": row.device}


def _check(column: str, measured: set[str]) -> None:
    """Raise BadInput unless ``column`` is a known one that one case has by itself."""
    check_columns([column], measured)
    if column in DERIVED and DERIVED[column].compares:
        raise BadInput(f"columns={column}: it compares cases of one run; give a column of a case, such as {TIME}")


class _Reader:
    """Reads those rows of many runs that have a text of each list in ``wanted``; ``interval`` is a column."""

    def __init__(self, wanted: Sequence[Sequence[bytes]], interval: str) -> None:
        self._interval = interval
        self.runs: _Runs = {}
        self._wanted = wanted
        self._messages: list[str] = []
        self._unreadable = 0
        self._cases: dict[bytes, CaseRecord] = {}  # by their JSON: most runs have the same ones
        self._keys: dict[tuple[str, str], _Key] = {}  # by the key of a case and the device
        self._cpus: dict[Path, str] = {}  # by the folder of a run

    def messages(self) -> list[str]:
        """Return what was left out."""
        damaged = f"records that are damaged or cut off: {self._unreadable}"
        return [f"left out: {text}" for text in (*self._messages, *([damaged] if self._unreadable else []))]

    def read(self, folder: Path) -> None:
        """Add the rows of the run in ``folder``."""
        try:
            rows = self._rows(folder)
        except BadInput as error:
            self._messages.append(str(error))
            return
        replicas: dict[str, tuple[_Key, list[Row]]] = {}
        for row in rows:
            case, device = row.case, self._device(folder, row)
            if (case.key, device) not in self._keys:
                self._keys[case.key, device] = (*match_key(_of_series(case, row.device)), device)
            replicas.setdefault(case.shared_key, (self._keys[case.key, device], []))[1].append(row)
        for key, members in replicas.values():
            self.runs.setdefault(key, []).append((folder, members))

    def _rows(self, folder: Path) -> list[Row]:
        """Return the last row of each wanted case. Raises BadInput as ``read_records`` does."""
        rows: dict[str, Row] = {}

        def read(record: dict[str, Any]) -> None:
            if record["record"] == "row":
                row = Row.from_record(record, self._case(record["case"]))
                rows[row.case.key] = row

        self._unreadable += journal.read_records(folder, read, self._is_wanted)
        return [row for row in rows.values() if row.device or row.time_us is not None]

    def _is_wanted(self, line: bytes) -> bool:
        if line.startswith(b'{"record":"row"'):
            return all(any(word in line for word in words) for words in self._wanted)
        return not line.startswith((b'{"record":"start"', b'{"record":"rounds"', b'{"record":"stop'))

    def _case(self, record: object) -> CaseRecord:
        text = orjson.dumps(record)
        if text not in self._cases:
            self._cases[text] = CaseRecord.from_record(record)
        return self._cases[text]

    def _device(self, folder: Path, row: Row) -> str:
        """Return the name of the GPU, or of the CPU and its number of threads."""
        if row.device != "cpu":
            return row.device
        if folder not in self._cpus:
            workers = [facts.get("worker") for facts in reversed(run_folder.earlier_sessions(folder))]
            names = [worker["cpu"] for worker in workers if isinstance(worker, Mapping) and worker.get("cpu")]
            self._cpus[folder] = str(names[0] if names else "cpu")
        threads = row.metrics.get("threads")
        return self._cpus[folder] + (f", {threads} thread{'s' * (threads != 1)}" if threads else "")

    def point(self, folder: Path, rows: Sequence[Row], column: str) -> Point:
        """Return the point of the run in ``folder``."""
        row = merge_replicas(rows)
        value: Any = row.time_us if column == TIME else row.metrics.get(column)
        if column in DERIVED and column != TIME:
            value = derive_lines(rows, None)[0].value(column)
        number = float(value) if is_number(value) else None
        percent: Any = row.metrics.get(self._interval)
        return Point("/".join(folder.parts[-2:]), rows, row, commits([row.metrics for row in rows]), number, percent)


def _of_series(case: CaseRecord, device: str) -> CaseRecord:
    """Return ``case`` without what may differ within a series, whose device has a name."""
    return reduced(case, "cpu" if device == "cpu" else "cuda").with_settings(device="auto")
