"""Measurements: each computes figures of a bound call, and declares them as ``COLUMNS`` in its file.

A measurement may write files into ``context.folder``. They are kept with the rows, the row names them, and W&B gets
them as an artifact. W&B also shows each ``*.csv`` as a table; the terminal shows ``summary.txt``.

A measurement whose tool has to start the process gives that tool ``context.command()`` to run.
"""

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ..device.cache import read_record
from ..records.case import CaseRecord, Scalar
from ..timing.call import Call

RESULT = "again.json"  # what the program that repeats a case under a tool writes
SUMMARY = "summary.txt"
CALL = "call"  # name of the ranges and spans around recorded calls


class CannotMeasure(Exception):
    """Raised if the tool of a measurement is missing, refused or saw nothing; the message says what to do.

    The row keeps its other figures, and the message goes into its column ``not_measured``.
    """


@dataclass(frozen=True)
class MeasureContext:
    """What a measurement is told in addition to the call."""

    device: str  # "cpu" or "cuda"
    case: CaseRecord
    place: Path | None = None  # path of ``folder``; None if no files can be kept
    figures: Mapping[str, Scalar] = field(default_factory=dict)  # figures of earlier measurements of this row
    program: str = ""  # module that builds and checks a case again, in a process that a tool has started

    @cached_property
    def folder(self) -> Path:
        """Folder for the files of this measurement, made on first use. Raises CannotMeasure if files cannot be kept."""
        if self.place is None:
            raise CannotMeasure("this measurement keeps files, and this call has no folder for them")
        self.place.mkdir(parents=True, exist_ok=True)
        return self.place

    @property
    def of_rank(self) -> str:
        """A note that the files are of one rank, if several ranks measure; else ""."""
        from ..timing.ranks import current

        return f"of rank {current.rank}; the other ranks have files of their own" if current.count > 1 else ""

    def command(self, calls: int = 0, **options: object) -> list[str]:
        """Return the command of a program that builds and checks the case again, then makes ``calls`` calls of it.

        The program is worker/again.py. It turns CUDA's profiler on for these calls only, and puts each into an NVTX
        range. The result of an earlier program is deleted.

        Args:
            calls: number of calls.
            options: ``cold_l2=False`` keeps the GPU's L2 cache warm; it is emptied before each call otherwise.
                ``script``, the keyword arguments of ``again.script``, skips the check and times the first calls.
                ``judge``, the path of a file of outputs, makes no call and checks the outputs.

        """
        import torch

        from ..timing.ranks import current

        (self.folder / RESULT).unlink(missing_ok=True)
        request = {"case": self.case.to_record(), "calls": calls, "result": str(self.folder / RESULT)}
        request |= {"place": current.another_place(), **options}
        (self.folder / "case.json").write_text(json.dumps(request), encoding="utf-8")
        torch.cuda.empty_cache()  # the other process needs the memory that torch caches here
        return [sys.executable, "-P", "-m", self.program, str(self.folder / "case.json")]


def result(folder: Path) -> dict[str, Any]:
    """Return the result of the program of ``MeasureContext.command`` in ``folder``; {} if there is none."""
    return read_record(folder / RESULT) or {}


def write_csv(path: Path, lines: Iterable[Mapping[str, object]], columns: Sequence[str] = ()) -> None:
    """Write a CSV file whose header is ``columns``, by default the keys of the first line.

    Floats are rounded to six decimals; 4096.0 is written as 4096.
    """
    lines = [*lines]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns or list(lines[0]))
        writer.writeheader()
        writer.writerows({name: _rounded(cell) for name, cell in line.items()} for line in lines)


def _rounded(cell: object) -> object:
    if not isinstance(cell, float):
        return cell
    return int(cell) if cell.is_integer() else round(cell, 6)


class Measurement(Protocol):
    """A dataclass whose fields are the fields of its YAML file. Its file does not import torch at the top.

    It may also have these methods:

    - ``prepare(device)`` measures facts about the machine, once, before the first case.
    - ``compare(calls, device)`` measures the calls of one problem in paired rounds. It returns the instrument and ten
      batch means of each call, or None if paired rounds are impossible.
    - ``compile_only(load, context)`` returns figures of the call that ``load`` makes, which cannot run on this
      machine, or None if the measurement does not compile. Raises CannotMeasure.
    """

    def measure(self, call: Call, context: MeasureContext) -> Mapping[str, Scalar | Sequence[float]]:
        """Return figures of ``call``, which has run before and is correct.

        A figure is a number, a text or a series of numbers. A ``verdict`` "wrong" fails the row. Raises CannotMeasure.
        """
