"""What measurements have kept, as W&B has it: the files as one artifact, and tables of the same kind as one table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from runner.experiment.results import Row
from runner.report.derive import Names
from runner.report.wandb_content import Cell, Table


def kept(folder: Path, rows: Sequence[Row]) -> list[str]:
    """Names of the files that are here: those of another machine's workers may not be."""
    return [file for row in rows for file in row.files if (folder / file).is_file()]


def tables(folder: Path, rows: Sequence[Row]) -> Mapping[str, Table]:
    """``profile/kernels`` → the lines of that file of every case, with the case before each."""
    names = Names([row.case for row in rows])
    records: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        head = {"case": names.heading(row.case), "implementation": names.impl(row.case)}
        for file in kept(folder, [row]):
            path = PurePath(file)
            if path.suffix == ".csv":
                with open(folder / file, newline="", encoding="utf-8") as lines:
                    some = [head | line for line in csv.DictReader(lines)]
                records.setdefault(f"{path.parent.name}/{path.stem}", []).extend(some)
    return {name: _table(some) for name, some in records.items() if some}


def _table(records: Sequence[Mapping[str, str]]) -> Table:
    columns = list(dict.fromkeys(name for record in records for name in record))
    typed = [_typed([record.get(name) or None for record in records]) for name in columns]
    return Table(columns, [list(cells) for cells in zip(*typed, strict=True)])


def _typed(words: Sequence[str | None]) -> list[Cell]:
    """Numbers if all of them are."""
    try:
        return [None if word is None else float(word) for word in words]
    except ValueError:
        return list(words)
