"""Rows as flat records: ``rows.csv``, and a pandas DataFrame with ``frame.load("outputs/...")``."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.experiment.case import Labels
from runner.experiment.columns import COLUMNS, DERIVED
from runner.experiment.schema import BadInput
from runner.report import past
from runner.report.derive import Line, Names
from runner.report.past import EXAMPLE
from runner.store import run_folder

if TYPE_CHECKING:
    from pandas import DataFrame


def load(*folders: str | Path, baseline: str | None = None) -> DataFrame:
    """Return the rows of the runs in ``folders``, one line per case.

    Speed-ups are against each run's own baseline, or against ``baseline``. The first two columns are ``run``, which is
    ``<date>/<time>-<name>``, or the whole path if two runs share that; and ``commit`` of the implementation's file. A
    row of an older run has the commit of this project: None if it is unknown, all of them in order if it was resumed.

    Raises:
        BadInput: there is no run in one of ``folders``, or none is given, or ``baseline`` is in no run.

    """
    if not folders:
        raise BadInput(f"no folder is given; give one or more, as {EXAMPLE}")
    runs = [past.read(folder).against(baseline) for folder in folders]
    for run in runs:
        if run.unreadable:
            warnings.warn(f"{run.folder}: unreadable records in its journal, left out: {run.unreadable}", stacklevel=2)
    found = [line for run in runs for line in run.lines]
    if found:
        Labels(line.row.case.impl for line in found).check(baseline)
    paths = {run.folder.resolve() for run in runs}
    distinct = len({run.name for run in runs}) == len(paths)
    names = [run.name if distinct else str(run.folder.resolve()) for run in runs]
    table = frame(found).drop(columns="commit", errors="ignore")
    table.insert(0, "run", [name for name, run in zip(names, runs, strict=True) for _ in run.lines])
    table.insert(1, "commit", [line.value("commit") or run.commit for run in runs for line in run.lines])
    return table


@dataclass(frozen=True)
class Csv:
    """The reporter that writes ``rows.csv``."""

    lines: Sequence[Line]

    def publish(self, folder: Path) -> list[str]:
        """Write the file, and return a message if that fails."""
        records, path = flat_records(self.lines), folder / "rows.csv"
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns(records), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        try:
            run_folder.replace(path, text.getvalue().encode())
        except OSError as error:
            return [f"{path} cannot be written: {error.strerror or error}"]
        return []


def frame(lines: Iterable[Line]) -> DataFrame:
    """Return one line per case, with the columns of ``flat_records``."""
    import pandas

    records = flat_records(list(lines))
    table = pandas.DataFrame(records, columns=columns(records))
    for name in table.select_dtypes("float"):  # whole numbers stay so where other rows have none
        if all(isinstance(record.get(str(name)), int | None) for record in records):
            table[name] = table[name].astype("Int64")
    return table


def flat_records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each line as one flat mapping.

    Fields are named as on the command line: ``workload.cols``, ``impl.mode``. Settings beside the workload and the
    implementation are there if they vary. Measured columns are in the order of their declaration, unknown ones, from
    other versions, after them.
    """
    names = Names([line.row.case for line in lines])
    order = {name: place for place, name in enumerate(COLUMNS)}
    records = []
    for line in lines:
        row, case = line.row, line.row.case
        records.append(
            {
                "workload": case.workload.name,
                **{f"workload.{name}": value for name, value in case.workload.fields.items()},
                "impl": case.impl.name,
                **{f"impl.{name}": value for name, value in case.impl.fields.items()},
                **names.settings(case),
                "seed": case.seed,
                "device": row.device,
                "status": row.status,
                "reason": row.reason,
                "phase": row.phase,
                **{name: names.value(line, name) for name in DERIVED},
                **{name: row.metrics[name] for name in sorted(row.metrics, key=lambda n: order.get(n, len(order)))},
                "key": case.key,
            }
        )
    return records


def columns(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of ``records``: run, workload, implementation, then the others, and the key last."""
    rank = {"run": -1, "workload": 0, "impl": 1, "key": 3}
    found = dict.fromkeys(name for record in records for name in record)
    return sorted(found, key=lambda name: rank.get(name.partition(".")[0], 2))
