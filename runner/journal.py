"""The journal: one JSON record a line, appended as it happens, by the parent alone. The only writer of results.

A record is written with one ``write`` to a file opened for appending, and begins with a newline: should a kill
tear the last one, the torn line ends there and the next record is whole. Reading skips torn lines.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.case import Case
from runner.rounds import Rounds
from runner.row import Row

NAME = "rows.jsonl"


class Journal:
    """Appends to ``<folder>/rows.jsonl``. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def start(self, case: Case) -> None:
        """``case`` has been given to a worker: without a row after it, it was in flight when all ended."""
        self._append({"record": "start", "key": case.key})

    def row(self, row: Row) -> None:
        """``row`` is on the disk when this returns. Raises OSError if it is not."""
        self._append({"record": "row", **row.to_record()})
        os.fsync(self._file)

    def rounds(self, rounds: Rounds) -> None:
        """The cases of one point have been compared. Raises OSError if it is not on the disk."""
        self._append({"record": "rounds", **rounds.to_record()})
        os.fsync(self._file)

    def _append(self, record: dict[str, Any]) -> None:
        line = b"\n" + json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(errno.ENOSPC, "the disk is full: the last row is not in the journal")


def records(folder: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of the journal in ``folder``, in order."""
    with open(folder / NAME, "rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:  # torn by a kill, or the newline between two records
                continue
            yield record


def read(folder: Path) -> list[Row]:
    """The rows of the journal in ``folder``; the first of each case counts."""
    rows: dict[str, Row] = {}
    for record in records(folder):
        if record.pop("record") == "row":
            rows.setdefault(record["key"], Row.from_record(record))
    return list(rows.values())


def read_rounds(folder: Path) -> list[Rounds]:
    """The comparisons in the journal in ``folder``."""
    found = [record for record in records(folder) if record.pop("record") == "rounds"]
    return [Rounds.from_record(record) for record in found]
