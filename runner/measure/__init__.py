"""Measurements: each turns a bound call and its context into figures, by columns that its file declares.

A measurement that keeps more than figures writes files into ``context.folder``. They stay beside the rows, the row
names them, and W&B gets them as an artifact. W&B also shows ``*.csv`` as tables; the terminal shows ``summary.txt``.

One that needs a process of its own, because a tool has to start it, lets that tool run ``context.command()``.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from runner.experiment import schema
from runner.experiment.case import CaseRecord, Scalar
from runner.experiment.columns import Column

if TYPE_CHECKING:
    from runner.timing import Call

SUMMARY = "summary.txt"
AGAIN, RESULT = "runner.worker.again", "again.json"  # does a case once more, under a tool; and what came of it
CALL = "call"  # what the ranges around its calls are named, and those around calls that a profiler watches here


class CannotMeasure(Exception):
    """A tool is missing, refused or saw nothing. One sentence that says which, and what to do.

    The row stays what it is without this measurement, and says so in its column ``not_measured``.
    """


@dataclass(frozen=True)
class MeasureContext:
    """What there is to know of a call beside itself."""

    device: str  # "cpu" or "cuda"
    case: CaseRecord | None = None  # None: a call of no grid, as in a self-test
    place: Path | None = None  # where ``folder`` is made; None: nowhere
    figures: Mapping[str, Scalar] = field(default_factory=dict)  # of the row so far: earlier measurements' among them

    @cached_property
    def folder(self) -> Path:
        """For files of this measurement of this case. Raises CannotMeasure if there can be none."""
        if self.place is None:
            raise CannotMeasure("it keeps files, and there is no folder for any here")
        try:
            self.place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotMeasure(f"{self.place} cannot be made: {error.strerror}") from error
        return self.place

    @property
    def expected(self) -> int | None:
        """How many kernels, copies and fills the benchmark saw in a call; None if it has not looked."""
        found = self.figures.get("n_kernels")
        return None if found is None else int(found)

    def command(self, calls: int, *, cold_l2: bool = True) -> list[str]:
        """A program that builds and checks the case anew, and makes ``calls`` calls of it with nothing beside them.

        Before each, a GPU's L2 cache is emptied, unless it is to hold what the last one left there. Around those calls
        it starts and stops CUDA's profiler, and each is in an NVTX range: see ``runner.worker.again``. Raises
        CannotMeasure if there is no case.
        """
        if self.case is None:
            raise CannotMeasure("it starts a process of its own for a case, and this call is of none")
        asked = {"calls": calls, "cold_l2": cold_l2, "result": str(self.folder / RESULT)}
        request = {"case": self.case.to_record(), **asked}
        (self.folder / "case.json").write_text(json.dumps(request), encoding="utf-8")
        _give_back_memory()
        return [sys.executable, "-P", "-m", AGAIN, str(self.folder / "case.json")]


def _give_back_memory() -> None:
    """A case that is built once more beside this process wants the memory that this one merely caches."""
    import torch

    torch.cuda.empty_cache()


def columns() -> dict[str, dict[str, Column]]:
    """Return the columns that each measurement declares in its file, as ``COLUMNS``, by the measurement's name.

    Importing these files loads no torch. A file that cannot be imported is reported where it is chosen.
    """
    found = {}
    for name in schema.names(__name__):
        with suppress(Exception):
            found[name] = dict(getattr(import_module(f"{__name__}.{name}"), "COLUMNS", {}))
    return found


def result(folder: Path) -> dict[str, Any]:
    """What the program of ``MeasureContext.command`` has left in ``folder``; empty if it did not come to that."""
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


class Measurement(Protocol):
    """Fields are those of its YAML; the class stands in the file of its name, and nothing at its top imports torch."""

    def measure(self, call: Call, context: MeasureContext) -> Mapping[str, Scalar | Sequence[float]]:
        """Figures of ``call``, which has been called before and is right.

        A number, a word, or a series of numbers each. A ``verdict`` of "wrong" makes the row wrong. Raises
        CannotMeasure.
        """


@runtime_checkable
class Preparing(Protocol):
    """A measurement that wants to know something of the machine before it can say anything of a call."""

    def prepare(self, device: str) -> None:
        """Find it out, on "cpu" or "cuda", and remember it. What fails is left for the first call to tell."""


@runtime_checkable
class Comparing(Protocol):
    """A measurement that can also take several calls of one point side by side."""

    def compare(
        self, calls: Sequence[tuple[Call, Mapping[str, Scalar]]], device: str
    ) -> list[tuple[str, list[float]]] | None:
        """Return the instrument and ten batch means of each call, which comes with its figures; None if impossible."""


@runtime_checkable
class Foreseeing(Protocol):
    """A measurement that can also say something of a call that cannot run on this machine."""

    def foresee(self, run: Callable[[], object], context: MeasureContext) -> Mapping[str, Scalar] | None:
        """Figures of ``run``, which nobody has called; None if that is not asked for. Raises CannotMeasure."""


def write(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, object]]) -> None:
    """``lines`` by ``columns``, which are there even if no line is."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)


def aligned(lines: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """A line of text each, indented: the columns ``left`` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if place in left else ">" for place in range(len(widths))]
    texts = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True))
        for line in lines
    ]
    return [f"  {text}".rstrip() for text in texts]
