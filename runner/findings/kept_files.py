"""Files that measurements keep beside the rows of a run, as far as they are in its folder."""

import csv
from contextlib import suppress
from io import StringIO
from pathlib import Path, PurePath
from typing import Any

from ..device.files import no_link
from ..records.case import Scalar
from ..records.row import Row
from ..store import run_folder

MOST_BYTES = 2**24  # most that is read of a text


def kept_files(folder: Path, row: Row, pattern: str = "*") -> dict[PurePath, Path]:
    """Return the files of ``row`` whose names end in ``pattern``, as ``profile/*.csv``, in the run's ``folder``.

    The keys are their names in the row. Files from workers on other machines may be missing.
    """
    names = [PurePath(name) for name in row.files if PurePath(name).match(pattern)]
    return {name: path for name in names if (path := run_folder.artifact(folder, str(name)))}


def read_kept(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a kept file, at most the first ``most`` bytes; "" if it cannot be read."""
    try:
        with open(path, "rb", opener=no_link) as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a CSV file by its header: numbers, words, and None for an empty cell.

    A damaged file has no lines.
    """
    try:
        lines = list(csv.DictReader(StringIO(read_kept(path), newline="")))
    except csv.Error:
        return []
    return [{name: _value(cell) for name, cell in line.items()} for line in lines]


def _value(cell: object) -> Scalar:
    if not isinstance(cell, str) or not cell:
        return None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(cell)
    return cell
