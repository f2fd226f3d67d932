"""Rows of past runs as a pandas DataFrame: ``runner.load("outputs/**")``."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings.flat import column_names, flat_records
from ..findings.lines import Line
from ..records.bad_input import BadInput
from ..records.labels import Labels

if TYPE_CHECKING:
    from pandas import DataFrame


def load(*folders: str | Path, baseline: str | None = None) -> DataFrame:
    """Return the rows of the runs in ``folders``, one line per case. A pattern such as ``outputs/**`` names many.

    Speed-ups are against each run's own baseline, or against ``baseline``. The first two columns are ``run``, which is
    ``<date>/<time>-<name>``, or the whole path if two runs share that; and ``commit`` of the implementation's file,
    None if it is in no repository.

    Raises:
        BadInput: there is no run in one of ``folders``, none that a pattern names, none is given, or ``baseline`` is in
            no run.
        ImportError: pandas or orjson is not installed.

    """
    _require("pandas", "orjson")
    from ..findings.past import read_run
    from ..store.run_folder import EXAMPLE

    if not folders:
        raise BadInput(f"no folder is given; give one or more, as {EXAMPLE}")
    runs = [read_run(folder) for folder in chain.from_iterable(map(_named, folders))]
    runs = runs if baseline is None else [run.with_plan(baseline=baseline) for run in runs]
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
    table.insert(1, "commit", [line.value("commit") for run in runs for line in run.lines])
    return table


def _named(folder: str | Path) -> list[str | Path]:
    """Return ``folder``, or the folders of runs that it names as a pattern, in order of their paths."""
    from ..store import journal
    from ..store.run_folder import EXAMPLE

    if not glob.has_magic(str(folder)) or Path(folder).exists():
        return [folder]
    found = [path for path in glob.glob(str(folder), recursive=True) if (Path(path) / journal.NAME).is_file()]
    if not found:
        raise BadInput(f"{folder}: it names no folder of a run; give one, as {EXAMPLE}, or a pattern, as outputs/**")
    return sorted(dict.fromkeys(path.rstrip("/") for path in found))


def frame(lines: Iterable[Line]) -> DataFrame:
    """Return one line per case, with the columns of ``flat_records``. Raises ImportError if pandas is not installed."""
    _require("pandas")
    import pandas

    records = flat_records(list(lines))
    table = pandas.DataFrame(records, columns=column_names(records))
    for name in table.select_dtypes("float"):  # whole numbers stay so where other rows have none
        if all(isinstance(record.get(str(name)), int | None) for record in records):
            table[name] = table[name].astype("Int64")
    return table


def _require(*packages: str) -> None:
    if missing := [package for package in packages if find_spec(package) is None]:
        raise ImportError(f"a DataFrame of rows needs {' and '.join(missing)}; pip install 'kernel-runner[cli]'")
