"""Measurements: each computes figures of a bound call, and declares them as ``COLUMNS`` in its file.

A measurement may write files into ``context.folder``. They are kept beside the rows, the row names them, and W&B gets
them as an artifact. W&B also shows each ``*.csv`` as a table; the terminal shows ``summary.txt``.

A measurement whose tool has to start the process gives that tool ``context.command()`` to run.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from runner.experiment import schema
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.columns import COLUMNS, DERIVED, DEVICE, Column
from runner.experiment.schema import BadInput

if TYPE_CHECKING:
    from runner.timing import Call

SUMMARY = "summary.txt"
AGAIN, RESULT = "runner.worker.again", "again.json"  # the program that repeats a case under a tool; its result
CALL = "call"  # name of the ranges and spans around recorded calls


class CannotMeasure(Exception):
    """A tool is missing, refused or saw nothing. One sentence that says which, and what to do.

    The row keeps its other figures, and the sentence goes into its column ``not_measured``.
    """


@dataclass(frozen=True)
class MeasureContext:
    """Facts that a measurement gets beside the call."""

    device: str  # "cpu" or "cuda"
    case: CaseRecord | None = None  # None: a call outside of a grid, as in a self-test
    place: Path | None = None  # path of ``folder``; None: no files can be kept
    figures: Mapping[str, Scalar] = field(default_factory=dict)  # of the row so far, from earlier measurements

    @cached_property
    def folder(self) -> Path:
        """Folder for the files of this measurement of this case, made on first use. Raises CannotMeasure."""
        if self.place is None:
            raise CannotMeasure("it keeps files, and this call has no folder for them")
        self.place.mkdir(parents=True, exist_ok=True)
        return self.place

    def command(self, calls: int, *, cold_l2: bool = True, script: Mapping[str, object] | None = None) -> list[str]:
        """Return the command of a program that builds and checks the case again, then makes ``calls`` calls of it.

        CUDA's profiler is on for these calls only, and each is in an NVTX range: see ``runner.worker.again``. Before
        each, the GPU's L2 cache is emptied if ``cold_l2``. With ``script`` it checks nothing, and times the first
        calls: see ``script`` there. Raises CannotMeasure if there is no case.
        """
        import torch

        if self.case is None:
            raise CannotMeasure("it starts a process of its own for a case, and this call belongs to no case")
        asked = {"calls": calls, "cold_l2": cold_l2, "script": script, "result": str(self.folder / RESULT)}
        request = {"case": self.case.to_record(), **asked}
        (self.folder / "case.json").write_text(json.dumps(request), encoding="utf-8")
        torch.cuda.empty_cache()  # the other process needs the memory that this one only caches
        return [sys.executable, "-P", "-m", AGAIN, str(self.folder / "case.json")]


def columns() -> dict[str, dict[str, Column]]:
    """Return the columns that each measurement declares in its file, as ``COLUMNS``, by the measurement's name.

    Importing these files loads no torch. A file that cannot be imported is reported where it is chosen.
    """
    found = {}
    for name in schema.names(__name__):
        with suppress(Exception):
            found[name] = dict(getattr(import_module(f"{__name__}.{name}"), "COLUMNS", {}))
    return found


@dataclass(frozen=True, slots=True)
class Quantity:
    """A line of the table that compares implementations: a column of the row, or of the kernels in ``kernels.csv``.

    Of kernels, ``call`` adds them up, and ``kernel`` takes the longest launch of the kernel with the most time.
    """

    title: str
    column: str
    of: Literal["row", "call", "kernel"] = "row"


def side_by_side() -> dict[str, tuple[Quantity, ...]]:
    """Return what each measurement with a field ``reference`` compares, ``SIDE_BY_SIDE`` in its file, by its name."""
    found = {}
    for name in schema.names(__name__):
        with suppress(Exception):
            found[name] = tuple(getattr(import_module(f"{__name__}.{name}"), "SIDE_BY_SIDE", ()))
    return {name: quantities for name, quantities in found.items() if quantities}


def known_columns() -> dict[str, Column]:
    """Return all declared columns by name: of any row, of the measurements, of the device, and derived from rows."""
    return {**COLUMNS, **dict(chain.from_iterable(map(dict.items, columns().values()))), **DEVICE, **DERIVED}


def check_columns(names: Sequence[str], also: Collection[str] = ()) -> tuple[str, ...]:
    """Return ``names`` of columns to show. Raises BadInput unless each is declared or among ``also``."""
    known = [*known_columns(), *also] if names else []
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, 3) or [one for one in known if str(name) in one][:3]
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise BadInput(f"columns: no such column {name!r}; {meant}docs/columns.md lists them all")
    return tuple(names)


def result(folder: Path) -> dict[str, Any]:
    """Return what the program of ``MeasureContext.command`` wrote into ``folder``; empty if it wrote nothing."""
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


class Measurement(Protocol):
    """A dataclass whose fields are those of its YAML file. Its file imports no torch at the top.

    It may also have these methods:

    - ``prepare(device)`` measures once, before the first case, what the measurement needs to know of the machine.
    - ``compare(calls, device)`` measures several calls of one problem in turn. It returns the instrument and ten batch
      means of each call, or None if that is impossible.
    - ``compile_only(run, context)`` returns figures of a call that cannot run on this machine, or None if none are
      asked for. Raises CannotMeasure.
    """

    def measure(self, call: Call, context: MeasureContext) -> Mapping[str, Scalar | Sequence[float]]:
        """Return figures of ``call``, which has run before and is correct.

        Each figure is a number, a word, or a series of numbers. The ``verdict`` "wrong" makes the row wrong. Raises
        CannotMeasure.
        """


def write_csv(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> None:
    """Write a header of ``columns``, and ``lines`` with their floats rounded to six decimals; 4096.0 is 4096."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for line in lines:
            writer.writerow({key: _rounded(cell) for key, cell in line.items()})


def _rounded(cell: object) -> object:
    if not isinstance(cell, float):
        return cell
    return int(cell) if cell.is_integer() else round(cell, 6)


def text_table(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return ``rows`` as indented lines of text; columns ``left`` are aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if place in left else ">" for place in range(len(widths))]
    texts = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    ]
    return [f"  {text}".rstrip() for text in texts]
