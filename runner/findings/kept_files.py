"""Files that measurements keep beside the rows of a run, as far as they are in its folder."""

from __future__ import annotations

import csv
from pathlib import Path, PurePath

from ..records.row import Row
from ..store import run_folder


def kept_files(folder: Path, row: Row, pattern: str = "*") -> dict[PurePath, Path]:
    """Return the files of ``row`` whose names end in ``pattern``, as ``profile/*.csv``, in the run's ``folder``.

    The keys are their names in the row. Files from workers on other machines may be missing.
    """
    names = [PurePath(name) for name in row.files if PurePath(name).match(pattern)]
    return {name: path for name in names if (path := run_folder.artifact(folder, str(name)))}


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file by its header; none if it is damaged."""
    try:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            return list(csv.DictReader(file))
    except (OSError, csv.Error):
        return []
