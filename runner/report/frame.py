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
from runner.report import derive
from runner.report.derive import Line, Names
from runner.store import journal, run_folder

if TYPE_CHECKING:
    from pandas import DataFrame

EXAMPLE = "outputs/<date>/<time>-<name>"


def load(*folders: str | Path, baseline: str | None = None) -> DataFrame:
    """Return the rows of the runs in ``folders``, one line per case.

    Speed-ups are against each run's own baseline, or against ``baseline``. The first two columns are ``run``, which is
    ``<date>/<time>-<name>``, or the whole path if two runs share that; and ``commit`` of this project: None if it is
    unknown, all of them in order if a run was resumed.

    Raises:
        BadInput: there is no run in one of ``folders``, or none is given, or ``baseline`` is in no run.

    """
    if not folders:
        raise BadInput(f"no folder is given; give one or more, as {EXAMPLE}")
    runs = [Path(folder) for folder in folders]
    read = [_read(run, baseline) for run in runs]
    found = [line for lines in read for line in lines]
    if found:
        Labels(line.row.case.impl for line in found).check(baseline)
    paths = [run.resolve() for run in runs]
    names = ["/".join(path.parts[-2:]) for path in paths]
    names = names if len(set(names)) == len(set(paths)) else [str(path) for path in paths]
    table = frame(found)
    for place, (column, values) in enumerate({"run": names, "commit": map(_commit, runs)}.items()):
        table.insert(place, column, [value for value, lines in zip(values, read, strict=True) for _ in lines])
    return table


def _read(folder: Path, baseline: str | None) -> list[Line]:
    """Return one line per case of the run in ``folder``. Raises BadInput if there is none."""
    if not (folder / journal.NAME).is_file():
        what = f"it holds no {journal.NAME}, so it is not the folder of a run"
        newest = run_folder.newest(str(folder)) or run_folder.newest(str(folder.parent))
        raise BadInput(f"{folder}: {what if folder.is_dir() else 'there is no such folder'}; give {newest or EXAMPLE}")
    contents = journal.load(folder)
    if contents.unreadable:
        warnings.warn(f"{folder}: unreadable records in its journal, left out: {contents.unreadable}", stacklevel=3)
    try:
        own = run_folder.read_head(folder)["baseline"]
    except FileNotFoundError:  # a journal alone
        own = None
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / run_folder.PLAN} cannot be read ({error})") from None
    return derive.lines(contents.rows.values(), baseline or own, contents.rounds)


def _commit(folder: Path) -> str | None:
    found = [session.get("commit") for session in run_folder.earlier_sessions(folder)]
    return ", ".join(dict.fromkeys(commit for commit in found if commit and isinstance(commit, str))) or None


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
    """Return the columns of ``records``: workload, implementation, then the others, and the key last."""
    rank = {"workload": 0, "impl": 1, "key": 3}
    found = dict.fromkeys(name for record in records for name in record)
    return sorted(found, key=lambda name: rank.get(name.partition(".")[0], 2))
